"""The model of the DPS-PCA paper, its rows reused by many releases, and the arms of its figures.

The paper draws Gaussian rows of norm about 70 and adds the noise for rows of norm 1, so its printed figures carry no
guarantee. Here every row is divided by its norm. This preserves the true subspace, since the distribution is
elliptical.

All arms have the same accounting: records are replaced, rows have norm 1, and
(epsilon, delta) is exact. A distance is ``||V^T W_perp||_F`` from the true directions, at most ``sqrt(k)``.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Relation
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noisy_products import completed, start_directions, truncated, truncated_step
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.dps_pca import FREE_STEPS, DpsPca
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.metrics import subspace_distance
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from papers.lib.experiments import Matrix
from papers.lib.kept_rows import KeptCurator, KeptRows

_SEED = 20180411


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Gaussian rows with k leading directions, of variance 100, in s features; other variances are below 10.

    ``rows_kept`` is the number of features that truncating arms keep.
    """

    n_features: int = 1_000
    n_records: int = 100_000
    n_components: int = 5
    n_relevant: int = 10
    rows_kept: int = 50

    def draw(self, seed: int) -> tuple[NDArray[np.float32], Matrix]:
        """Return rows of norm 1 and the true directions as columns."""
        rng = np.random.default_rng([_SEED, seed])
        d, k = self.n_features, self.n_components
        leading = np.zeros((d, k))
        leading[: self.n_relevant] = np.linalg.qr(rng.standard_normal((self.n_relevant, k)))[0]
        rest = rng.standard_normal((d, d - k))
        rest = np.linalg.qr(rest - leading @ (leading.T @ rest))[0]
        root = np.hstack([10.0 * leading, rest * np.sqrt(rng.uniform(0.0, 10.0, d - k))]).T.astype(np.float32)
        rows = rng.standard_normal((self.n_records, d), np.float32) @ root
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows, leading


PAPER = Model()
"""The model of figures 2, 3 and 4a."""
RELATION: Relation = "replace_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A mechanism with its settings; ``truncates`` states whether it takes the number of kept features."""

    name: str
    mechanism: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    truncates: bool = False

    def build(self, model: Model) -> Any:
        """Return the mechanism for a model."""
        kept = {"rows_kept": model.rows_kept} if self.truncates else {}
        return self.mechanism(n_components=model.n_components, **kept, **self.settings)


OURS = Arm(name="DPS-PCA", mechanism=DpsPca, truncates=True)
WHOLE = Arm(
    name="DPS-PCA, whole messages, last round",
    mechanism=DpsPca,
    settings={"iterations": 10, "burn_in": 9, "message_clip": 1.0},
    truncates=True,
)
PRINTED = Arm(
    name="DPS-PCA, printed noise",
    mechanism=DpsPca,
    settings={"calibration": "paper", "iterations": 10, "burn_in": 9, "message_clip": 1.0},
    truncates=True,
)
SPARSE = Arm(name="sparse Analyze Gauss", mechanism=DpsPca, settings={"form": "one_round"}, truncates=True)
ANALYZE_GAUSS = Arm(name="Analyze Gauss", mechanism=AnalyzeGauss)
MOD_SULQ = Arm(name="MOD-SULQ, least noise", mechanism=ModSulq)
PRINTED_SULQ = Arm(name="MOD-SULQ, printed noise", mechanism=ModSulq, settings={"calibration": "paper"})
PPCA = Arm(name="PPCA by peeling", mechanism=Exponential)
ARMS = (OURS, PRINTED, SPARSE, ANALYZE_GAUSS, MOD_SULQ, PRINTED_SULQ, PPCA)
NON_PRIVATE, TRUNCATED = "no privacy", "no privacy, truncated"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """Components as orthonormal rows, and the truncated directions (d, k) after each round, if there are rounds."""

    components: Matrix
    rounds: tuple[Matrix, ...] = ()


class Draw:
    """One draw of a model, on which each arm runs once at each (epsilon, delta).

    Parameters
    ----------
    model : Model
    rows : array
        Rows of norm 1.
    truth : array
        The true directions as columns.
    run : int
        The number of the draw, from which keys are derived, so that every number is reproducible.
    """

    def __init__(self, model: Model, rows: NDArray[np.float32], truth: Matrix, *, run: int) -> None:
        self.model, self.truth, self.run = model, truth, run
        self.rows = KeptRows(source=ArrayBlocks(rows))
        self._answers: dict[tuple[str, float, float], Answer] = {}

    @classmethod
    def of(cls, model: Model, *, run: int) -> Self:
        """Draw rows of a model."""
        return cls(model, *model.draw(run), run=run)

    def distance(self, arm: Arm, *, epsilon: float, delta: float) -> float:
        """Return the distance of an arm's components from the true ones."""
        return self.to_truth(self.answer(arm, epsilon=epsilon, delta=delta).components)

    def trajectory(self, arm: Arm, *, epsilon: float, delta: float) -> list[float]:
        """Return the distances of the public start, and of the truncated directions after each round."""
        start = start_directions(self.model.n_features, self.model.n_components)
        rounds = self.answer(arm, epsilon=epsilon, delta=delta).rounds
        return [self.to_truth(directions.T) for directions in (start, *rounds)]

    def to_truth(self, components: Matrix) -> float:
        """Return the distance of orthonormal rows from the true directions."""
        return subspace_distance(components, self.truth.T)

    def answer(self, arm: Arm, *, epsilon: float, delta: float) -> Answer:
        """Return the cached answer of an arm, which runs at the first call."""
        asked = (arm.name, epsilon, delta)
        if asked not in self._answers:
            self._answers[asked] = self._run(arm, epsilon=epsilon, delta=delta)
        return self._answers[asked]

    @cached_property
    def non_private(self) -> Mapping[str, Matrix]:
        """The noise-free components by name: the leading directions, and the result of truncated steps from them."""
        moment = self.rows.form_moment()
        _, leading = leading_eigenpairs(moment, self.model.n_components)
        directions = np.ascontiguousarray(leading.T)
        for _ in range(FREE_STEPS):
            directions = truncated_step(moment, directions, rows_kept=self.model.rows_kept)
        return {NON_PRIVATE: leading, TRUNCATED: directions.T}

    @property
    def problem(self) -> Problem:
        """The public facts about the rows."""
        records = self.rows.source.n_records
        return Problem(n_features=self.model.n_features, clip_norm=1.0, relation=RELATION, records_at_most=records)

    def _run(self, arm: Arm, *, epsilon: float, delta: float) -> Answer:
        mechanism, shape = arm.build(self.model), (self.model.n_features, self.model.n_components)
        plan = mechanism.plan(self.problem, PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True))
        key = hashlib.sha256(repr((self.run, arm.name, epsilon, delta)).encode()).digest()
        reservation = InMemoryReservation(event=plan.event, relation=RELATION, key=key)
        found = mechanism.run(KeptCurator(self.rows, reservation), plan)
        released = [reservation.steps[step]["answer"] for step in sorted(reservation.steps)]
        products = [each.reshape(shape).astype(float) for each in released if each.size == shape[0] * shape[1]]
        rounds = [truncated(completed(each), rows_kept=self.model.rows_kept) for each in products if arm.truncates]
        return Answer(components=np.asarray(found.components), rounds=tuple(rounds))
