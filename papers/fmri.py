"""Run capePCA and its baselines on fMRI scans of seven subjects, with one site per subject.

A record is one time point of a scan, not a person, so epsilon protects one time point. In a second experiment, epsilon
protects a whole scan. Each brain region is standardized by its mean and std over the scan, which count as public here,
as in the literature. Then each time point is scaled to norm 1. Noise comes from seeds, and no ledger is charged.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.mechanisms.sites.joint_plan import mu_of
from papers.lib.experiments import Check, DataFolder, Matrix, OutFolder, Report, Runs, at_least, at_most, near, report
from papers.lib.figures import LineChart, write_comparison
from papers.lib.public_data import SCANS, read_scans, unit_rows
from papers.lib.sites import CAPE, COLLUDING, COLUMNS, CONV, LOCAL, POOLED, Cell, Sites, Truth, leading, sweep_rows

type Seen = Mapping[tuple[str, float, str], float]
RUNS, N_COMPONENTS, DELTA, EPSILONS = 3, 10, 1e-5, (0.5, 1.0, 2.0, 5.0, 10.0)
POINT, PERSON = "epsilon of a time point", "epsilon of a person"
ALONE, RANDOM = "one subject, non-private", "random directions"
FLOORS = {CAPE: (0.93, 0.97, 0.99, 0.995, 0.998), COLLUDING: (0.91, 0.965, 0.985, 0.995, 0.998)}
"""Lower bounds, at `EPSILONS`, of the energy relative to that of the best non-private directions."""
NO_SIGNAL = 0.1
"""The largest accepted gain over random directions when a whole person is protected."""
CHARGED = "nothing: the scans are public, and noise comes from seeds, without a ledger"
TITLES = {"sweeps": "Captured energy of seven subjects as sites"}
MEANING = (
    "One record is one time point of a scan, not a person: epsilon of a time point states little about the person, "
    "whose time points all resemble each other.",
    "Each region was standardised by its own mean and std over the scan, as if they were public.",
)
CHART = LineChart(
    title="",
    x="value",
    y="share",
    panel="sweep",
    y_label="energy relative to the best",
    arms=(POOLED, CAPE, COLLUDING, CONV, LOCAL, ALONE, RANDOM),
    panels={POINT: "protected: one time point|epsilon", PERSON: "protected: one person|epsilon"},
)


def reproduce(*, runs: Runs = RUNS, data: DataFolder = Path("data"), out: OutFolder = None) -> Report:
    """Check capePCA and its baselines on fMRI scans of seven subjects, one site per subject, and report too few sites.

    A record is one time point, not a person: epsilon holds for a time point, and a second sweep holds for a whole scan.
    The scans are public and the noise comes from seeds, so no budget is spent. It takes half a minute.

    Returns
    -------
    Report
        With ``tables``, ``columns``, ``notes``, ``files`` and ``charged``.
    """
    scans = read_scans(data / SCANS)
    rows: list[dict[str, Any]] = []
    left_out = [] if scans else [f"fMRI: {data / SCANS} has no scans; fetch them with make data"]
    found = report(_checks(rows, scans, runs) if scans else (), left_out=left_out, charged=CHARGED)
    found |= {"tables": {"sweeps": rows}, "columns": {"sweeps": list(COLUMNS)}}
    found["notes"] = [*MEANING, *too_few(rows)] if scans else []
    return found | {"files": write_comparison(found, TITLES, out, chart=CHART)}


def person_epsilon(epsilon: float, *, records: int, delta: float = DELTA) -> float:
    """Return the epsilon per record at which all records of a person together have the requested epsilon.

    The noise is Gaussian. The sensitivity to all records of a person is at most the number of these records times the
    sensitivity to one record.
    """
    return gaussian_epsilon(noise_multiplier=records / mu_of(epsilon=epsilon, delta=delta), delta=delta)


def too_few(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences that state for which methods and epsilons there are too few sites.

    There are too few sites for a method if its joint release captures less than a single site captures from its own
    rows without privacy, as a mean over sites. Then a joint release is useless.
    """
    seen, text = _shares(rows), []
    sites = rows[0]["sites"]
    for sweep in (POINT, PERSON):
        for arm in (CAPE, COLLUDING, CONV):
            short = [e for e in EPSILONS if seen[sweep, e, arm] < seen[sweep, e, ALONE]]
            if short:
                at = ", ".join(f"{e:g} ({seen[sweep, e, arm]:.2f})" for e in short)
                text.append(
                    f"{sites} sites are too few for {arm} at {sweep} {at}: one subject's own rows without privacy give "
                    f"{seen[sweep, short[0], ALONE]:.2f}, and random directions {seen[sweep, short[0], RANDOM]:.2f}."
                )
    return text or [f"{sites} sites are enough at every epsilon tried."]


def _checks(rows: list[dict[str, Any]], scans: Sequence[Matrix], runs: int) -> Iterator[Check]:
    stacked = unit_rows(np.concatenate(scans))
    sites = Sites(stacked, [len(scan) for scan in scans])
    k = min(N_COMPONENTS, sites.n_features - 1)
    truth = Truth(data="fMRI", moment=stacked.T @ stacked / len(stacked), n_components=k)
    yield near("subjects", 7, 0, got=len(scans))
    yield near(f"energy of {k} directions without privacy, of 1", 0.533, 0.001, got=truth.best)
    rows += _sweeps(sites, truth, runs)
    seen = _shares(rows)
    for at, epsilon in enumerate(EPSILONS):
        of = {arm: seen[POINT, epsilon, arm] for arm in (CAPE, COLLUDING, CONV, LOCAL, POOLED)}
        shown = f"share at {POINT} {epsilon:g}"
        yield near(f"{shown}: {CAPE} minus {POOLED}", 0.0, 0.01, got=of[CAPE] - of[POOLED])
        for arm, floors in FLOORS.items():
            yield at_least(f"{shown}: {arm}", floors[at], got=of[arm])
        yield at_least(f"{shown}: {COLLUDING} minus {CONV}", 0.0, got=of[COLLUDING] - of[CONV])
        yield at_least(f"{shown}: {CONV} minus {LOCAL}", 0.0, got=of[CONV] - of[LOCAL])
    last = EPSILONS[-1]
    gap = seen[PERSON, last, CAPE] - seen[PERSON, last, RANDOM]
    yield at_most(f"share at {PERSON} {last:g}: {CAPE} minus {RANDOM}", NO_SIGNAL, got=gap)


def _sweeps(sites: Sites, truth: Truth, runs: int) -> list[dict[str, Any]]:
    """Return mean captured energies for each epsilon per time point and per scan.

    They are computed for all compared methods, for the directions of a single site, and for random directions.
    """
    largest = max(sites.sizes)

    def cells(_: int) -> Iterator[Cell]:
        for epsilon in EPSILONS:
            yield Cell(sweep=POINT, value=epsilon, sites=sites, epsilon=epsilon, delta=DELTA)
        for epsilon in EPSILONS:
            each = person_epsilon(epsilon, records=largest)
            yield Cell(sweep=PERSON, value=epsilon, sites=sites, epsilon=each, delta=DELTA)

    rows = sweep_rows(cells, truth, runs)
    of_sites = [truth.energy(leading(sums, sites.n_features, truth.n_components)) for sums in sites.sums]
    level = {
        ALONE: float(np.mean(of_sites)),
        RANDOM: truth.n_components / sites.n_features * float(np.trace(truth.moment)),
    }
    first = {(row["sweep"], row["value"]): row for row in reversed(rows)}
    for row in first.values():
        rows += [{**row, "arm": arm, "energy": got, "share": got / truth.best} for arm, got in level.items()]
    return rows


def _shares(rows: Sequence[Mapping[str, Any]]) -> Seen:
    return {(row["sweep"], row["value"], row["arm"]): row["share"] for row in rows}
