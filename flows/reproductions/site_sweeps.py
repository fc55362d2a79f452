"""The settings along which the CAPE paper plots its energies, each run with every arm: the rows of a table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.reproductions.site_arms import ARMS, Setting, components_of
from flows.reproductions.site_rows import Model, Sites, centred_mnist, equal_sites, unit_rows

type Matrix = NDArray[np.float64]

DELTA, EPSILONS = 0.01, (0.1, 0.5, 1.0, 5.0, 10.0)
DELTAS = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2)
RECORDS = (100, 500, 1_000, 2_000, 4_000, 6_000)
SITES = (5, 10, 20, 50, 100)
UNEQUAL = (100, 150, 250, 350, 500, 700, 950, 1_300, 1_700, 4_000)
"""As many records in all as ten sites of a thousand."""
COLUMNS = ("data", "sweep", "value", "epsilon", "delta", "sites", "records", "arm", "energy", "share")

_USUAL, _AT_ONE_SITE = 10, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A data set's name and the moment by which directions are judged; its best energy for k."""

    data: str
    moment: Matrix
    n_components: int

    @property
    def best(self) -> float:
        """The energy of the leading directions."""
        return float(np.linalg.eigvalsh(self.moment)[-self.n_components :].sum())

    def energy(self, components: Matrix) -> float:
        """Return ``tr(V^T M V)`` of orthonormal rows."""
        return float(np.sum(components * (components @ self.moment)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A point of a figure: where it stands, the sites, and what is asked."""

    sweep: str
    value: float
    sites: Sites
    epsilon: float
    delta: float = DELTA

    def rows(self, truth: Truth, *, seed: int) -> Iterator[dict[str, Any]]:
        """Run every arm, and iterate over the rows of the table."""
        setting = Setting(epsilon=self.epsilon, delta=self.delta, n_components=truth.n_components)
        for arm in ARMS:
            energy = truth.energy(components_of(arm, self.sites, setting, seed=seed))
            yield {
                "data": truth.data,
                "sweep": self.sweep,
                "value": self.value,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "sites": len(self.sites.sizes),
                "records": sum(self.sites.sizes),
                "arm": arm,
                "energy": energy,
                "share": energy / truth.best,
            }


def model_sweeps(model: Model, *, runs: int) -> list[dict[str, Any]]:
    """Return mean energies on the model, along epsilon, delta, records a site, sites of the same records, and sizes."""
    truth = Truth(data="model", moment=np.diag(model.variances), n_components=model.n_components)

    def cells(run: int) -> Iterator[Cell]:
        rows = model.draw(_USUAL * RECORDS[-1], seed=run)
        usual = equal_sites(rows, sites=_USUAL, records=_AT_ONE_SITE)
        for epsilon in EPSILONS:
            yield Cell(sweep="epsilon", value=epsilon, sites=usual, epsilon=epsilon)
        for delta in DELTAS:
            yield Cell(sweep="delta", value=delta, sites=usual, epsilon=1.0, delta=delta)
        for records in RECORDS:
            sites = equal_sites(rows, sites=_USUAL, records=records)
            yield Cell(sweep="records", value=records, sites=sites, epsilon=0.5)
        for count in SITES:
            sites = equal_sites(rows, sites=count, records=_USUAL * _AT_ONE_SITE // count)
            yield Cell(sweep="sites", value=count, sites=sites, epsilon=1.0)
        for largest, sites in ((_AT_ONE_SITE, usual), (max(UNEQUAL), Sites(rows, UNEQUAL))):
            yield Cell(sweep="largest site", value=largest, sites=sites, epsilon=1.0)

    return mean_rows(cells, truth, runs)


def mnist_sweeps(data: Path, *, runs: int, n_components: int = 50) -> list[dict[str, Any]]:
    """Return mean energies on MNIST along epsilon, ten sites of a thousand images."""
    images = centred_mnist(data, n_rows=_USUAL * _AT_ONE_SITE)
    truth = Truth(data="MNIST", moment=images.T @ images / len(images), n_components=n_components)
    sites = equal_sites(unit_rows(images), sites=_USUAL, records=_AT_ONE_SITE)

    def cells(_: int) -> Iterator[Cell]:
        for epsilon in EPSILONS:
            yield Cell(sweep="epsilon", value=epsilon, sites=sites, epsilon=epsilon)

    return mean_rows(cells, truth, runs)


def mean_rows(cells: Callable[[int], Iterator[Cell]], truth: Truth, runs: int) -> list[dict[str, Any]]:
    """Run all cells as often as asked, and average their energies row by row."""
    found = [[row for cell in cells(run) for row in cell.rows(truth, seed=run)] for run in range(runs)]
    means = []
    for same in zip(*found, strict=True):
        means.append({**same[0], **{name: float(np.mean([row[name] for row in same])) for name in ("energy", "share")}})
    return means
