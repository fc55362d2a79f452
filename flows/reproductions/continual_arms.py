"""What is captured of a9a every night: by a stream, and by the same privacy spent on separate releases or on a tree."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.factorisation import Weights, choose_weights, tree_factors
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.stream_estimate import coefficients, combined, streamed_subspace
from dpca_tasks.mechanisms.parts.stream_ticks import plan_stream, release_tick, tick_noise, tick_query
from dpca_tasks.metrics import captured_variance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.records.sources import ArrayBlocks

type Matrix = NDArray[np.float64]

TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
N_COMPONENTS = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Nights:
    """Rows that arrive over some nights, in a random order, equally many each night.

    Parameters
    ----------
    rows : sparse array of shape (n, d)
    clip_norm : float
    ticks : int
    run : int
        The seed of order, keys and baselines.
    """

    rows: sparse.csr_array
    clip_norm: float
    ticks: int
    run: int

    @cached_property
    def weights(self) -> Weights:
        """The weights for so many nights."""
        return choose_weights("sqrt", ticks=self.ticks)

    @cached_property
    def plan(self) -> Plan:
        """The plan of a stream of so many nights."""
        problem = Problem(n_features=self.rows.shape[1], clip_norm=self.clip_norm)
        return plan_stream(problem, TARGET, weights=self.weights, ticks=self.ticks, n_components=N_COMPONENTS)

    @cached_property
    def ordered(self) -> sparse.csr_array:
        """The rows in the order of their arrival."""
        rng = np.random.default_rng((self.run, self.ticks))
        return sparse.csr_array(self.rows[rng.permutation(self.rows.shape[0])])

    @cached_property
    def arrived(self) -> NDArray[np.int64]:
        """The night of each row."""
        n_rows = self.rows.shape[0]
        return np.asarray(np.arange(n_rows) * self.ticks // n_rows + 1)

    def released(
        self, tick: int, *, block_records: int = 4096, reservation: InMemoryReservation | None = None
    ) -> Matrix:
        """Release a tick through the curator."""
        here = int(np.searchsorted(self.arrived, tick, side="right"))
        source = ArrayBlocks(self.ordered[:here], first_seen=self.arrived[:here], block_records=block_records)
        return release_tick(Curator(source, reservation or self.reserved(tick)), self.plan, self.query(tick))

    def reserved(self, tick: int) -> InMemoryReservation:
        """Return a reservation of a tick with its own key, from the seed."""
        key = hashlib.sha256(f"continual {self.ticks} {self.run} {tick}".encode()).digest()
        return InMemoryReservation(event=self.plan.event, key=key)

    def query(self, tick: int) -> StreamedMoment:
        """Return the query of a tick."""
        arrivals = tuple(range(1, tick + 1))
        return tick_query(self.plan, weights=self.weights, horizon=self.ticks, tick=tick, arrivals=arrivals)

    def moments(self) -> Iterator[Matrix]:
        """Iterate over the true second moments of all that arrived up to each night."""
        total = np.zeros((self.rows.shape[1],) * 2)
        for tick in range(1, self.ticks + 1):
            first, last = np.searchsorted(self.arrived, [tick, tick + 1])
            tonight = self.ordered[first:last]
            total = total + (tonight.T @ tonight).toarray()
            yield total


def captured(nights: Nights) -> tuple[dict[str, float], list[Matrix]]:
    """Return the mean part of the best captured variance over nights, by arm, and the stream's directions.

    Arms: ``stream``, through the whole program; ``independent releases``, one a night of equal noise; ``tree``, the
    best estimator on a complete binary tree. The latter two have the noise of their estimate drawn from a seed.
    """
    rng = np.random.default_rng((nights.run, nights.ticks, 1))
    alone = nights.plan.noise_multiplier * nights.clip_norm**2
    baselines = {
        "independent releases": np.full(nights.ticks, math.sqrt(nights.ticks)),
        "tree": tree_factors(nights.ticks),
    }
    facts = tick_noise(nights.plan, nights.query(1))
    found: dict[str, list[float]] = {name: [] for name in ("stream", *baselines)}
    answers: list[Matrix] = []
    versions: list[Matrix] = []
    for tick, moment in enumerate(nights.moments(), start=1):
        values = np.linalg.eigvalsh(moment)[::-1]
        answers.append(nights.released(tick))
        multipliers = coefficients(nights.weights, kept=range(1, tick + 1))
        estimate = combined(answers, multipliers)
        subspace = streamed_subspace(
            estimate, nights.plan.problem, noise=facts, multipliers=multipliers, n_components=N_COMPONENTS
        )
        versions.append(subspace.components)
        found["stream"].append(captured_variance(moment, subspace.components, values=values))
        for name, factors in baselines.items():
            noisy = moment + alone * factors[tick - 1] * isotropic(rng, len(moment))
            rows = np.linalg.eigh(noisy)[1][:, -N_COMPONENTS:].T
            found[name].append(captured_variance(moment, rows, values=values))
    return {name: float(np.mean(values)) for name, values in found.items()}, versions


def isotropic(rng: np.random.Generator, order: int) -> Matrix:
    """Draw a symmetric matrix of std 1 on the diagonal and the root of a half beside it."""
    drawn = rng.standard_normal((order, order))
    return np.asarray((drawn + drawn.T) / 2.0)
