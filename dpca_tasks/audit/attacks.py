"""An attacker who knows both neighbours and every record in them, hears all answers, and must tell which was used.

It turns one run into a few numbers, each larger when the left dataset was used:

- *likelihood*: the log likelihood ratio of all answers of the curator. The attacker knows each question, computes
  both exact answers, and compares the two residuals. Optimal for Laplace noise and for isotropic Gaussian noise.
- *reuse*: the same noise in two answers of one release shows as two equal residuals, on the right dataset only.
- *published*: what is left of the likelihood ratio in the published components and eigenvalues.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.audit.neighbours import Neighbours
from dpca_tasks.blocks import BlockSource
from dpca_tasks.exact_sum import exact_sum
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import Problem, Subspace
from dpca_tasks.privacy.curator import Curator, Reservation
from dpca_tasks.privacy.noise import NoiseLaw
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import SecondMoment

type Answer = tuple[RowSum, NoiseLaw, NDArray[np.float64]]

_CLOSEST = 1e-12
_BITS = 12


class HeardCurator(Curator):
    """The curator, with everything it lets out written down."""

    def __init__(self, source: BlockSource, reservation: Reservation) -> None:
        super().__init__(source, reservation)
        self.heard: list[Answer] = []

    def release(self, query: RowSum, law: NoiseLaw) -> NDArray[np.float64]:
        """Release, and write down."""
        noisy = super().release(query, law)
        self.heard.append((query, law, noisy))
        return noisy


class Attacker:
    """Who tells two neighbours apart by what leaves a mechanism.

    Parameters
    ----------
    neighbours : Neighbours
    problem : Problem
    """

    def __init__(self, neighbours: Neighbours, problem: Problem) -> None:
        self._sources = (neighbours.left, neighbours.right)
        self._known: dict[bytes, tuple[NDArray[np.float64], ...]] = {}
        moment = SecondMoment(
            n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=_BITS
        )
        left, right = self._exact(moment)
        self._direction = left - right

    def statistics(self, heard: list[Answer], published: Subspace) -> dict[str, float]:
        """Turn one run into numbers that are larger when the left dataset was used."""
        likelihood = 0.0
        residuals: list[tuple[NDArray[np.float64], ...]] = []
        for query, law, noisy in heard:
            scale = law.noise_multiplier * query.sensitivity(law.norm) * query.unit
            left, right = ((noisy - exact) / scale for exact in self._exact(query.plain))
            likelihood += _minus_log_density(law, right) - _minus_log_density(law, left)
            residuals.append((left, right))
        found = {"likelihood": likelihood, "published": self._along_direction(published)}
        if len(residuals) > 1:
            found["reuse"] = _closest(residuals, 1) - _closest(residuals, 0)
        return found

    def _exact(self, query: RowSum) -> tuple[NDArray[np.float64], ...]:
        """Return the answer without noise on both datasets; kept when every run asks for it."""
        if query.public_inputs():
            return tuple(_answer(source, query) for source in self._sources)
        name = query.digest()
        if name not in self._known:
            self._known[name] = tuple(_answer(source, query) for source in self._sources)
        return self._known[name]

    def _along_direction(self, published: Subspace) -> float:
        """Rebuild the noisy second moment as well as the artifact allows, and project it."""
        rows, k = published.components, len(published.components)
        rest = published.spectrum[k:].mean() if published.spectrum.size > k else 0.0
        rebuilt = (rows.T * (published.eigenvalues - rest)) @ rows + rest * np.eye(rows.shape[1])
        return float(np.vdot(self._direction, rebuilt))


def _answer(source: BlockSource, query: RowSum) -> NDArray[np.float64]:
    exact = exact_sum(source, query) / query.steps_per_unit * query.unit
    return unpack_symmetric(exact, query.layout.order) if query.layout.kind == "symmetric" else exact


def _minus_log_density(law: NoiseLaw, residual: NDArray[np.float64]) -> float:
    """Weigh a residual in units of the noise's scale, up to a constant; the Gaussian way where there is no form."""
    if law.norm == "l1":
        packed = residual[np.triu_indices(len(residual))] if law.layout == "symmetric" else residual
        return float(np.abs(packed).sum())
    return float(np.vdot(residual, residual)) / 2.0


def _closest(residuals: list[tuple[NDArray[np.float64], ...]], side: int) -> float:
    """Return the log distance of the two closest residuals of one shape."""
    gaps = [
        float(np.abs(one[side] - two[side]).max())
        for one, two in itertools.combinations(residuals, 2)
        if one[side].shape == two[side].shape
    ]
    return float(np.log(max(min(gaps, default=1.0), _CLOSEST)))
