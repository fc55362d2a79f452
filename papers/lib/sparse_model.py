"""The synthetic data of the DPS-PCA paper, and the methods (arms) that its figures compare.

The paper draws Gaussian rows of norm about 70 and adds noise for rows of norm 1, so the printed figures have no privacy
guarantee. Here every row is divided by its norm. This preserves the true subspace, because the distribution is
elliptical.

All methods have the same exact guarantee: (epsilon, delta) for one replaced record of norm 1. The distance of
directions V from the true directions W is ``||V^T W_perp||_F``, which is at most ``sqrt(k)``.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Self

import numpy as np
import typer
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
from dpca_tasks.threads import one_thread
from papers.lib.experiments import Matrix
from papers.lib.kept_rows import KeptCurator, KeptRows

_SEED = 20180411


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The distribution of synthetic rows: Gaussian, with k leading directions of variance 100; others are below 10.

    The leading directions lie in s = ``n_relevant`` features. ``rows_kept`` is the number of features that methods with
    truncation keep.
    """

    n_features: int = 1_000
    n_records: int = 100_000
    n_components: int = 5
    n_relevant: int = 10
    rows_kept: int = 50

    @property
    def squared_norm(self) -> float:
        """The mean squared norm of a row before it is scaled to norm 1."""
        return 100.0 * self.n_components + 5.0 * (self.n_features - self.n_components)

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


Records = Annotated[int, typer.Option(min=1_000, help="Records per draw; checks are judged only for the default.")]
PAPER = Model()
"""The model of figures 2, 3 and 4a."""
RELATION: Relation = "replace_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A compared method: a mechanism with settings, and whether it keeps only some features (``truncates``)."""

    name: str
    mechanism: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    truncates: bool = False

    def build(self, model: Model) -> Any:
        """Return the mechanism with the settings that the model needs, such as the number of components."""
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
ANALYZE_GAUSS = Arm(name="Analyze Gauss", mechanism=AnalyzeGauss, settings={"rounds": 1})
MOD_SULQ = Arm(name="MOD-SULQ, least noise", mechanism=ModSulq)
PRINTED_SULQ = Arm(name="MOD-SULQ, printed noise", mechanism=ModSulq, settings={"calibration": "paper"})
PPCA = Arm(name="PPCA by peeling", mechanism=Exponential)
GIBBS = Arm(
    name="PPCA by Gibbs (not certified)",
    mechanism=Exponential,
    settings={"sampler": "gibbs", "allow_uncertified": True},
)
"""The paper's sampler, with 40 sweeps. No privacy is proved for it, so it runs on synthetic rows alone."""
ARMS = (OURS, PRINTED, SPARSE, ANALYZE_GAUSS, MOD_SULQ, PRINTED_SULQ, PPCA)
NON_PRIVATE, TRUNCATED = "no privacy", "no privacy, truncated"


PRINTED_ROUNDS = 10
"""The number T of rounds in the paper."""


def printed_std(*, epsilon: float, delta: float) -> float:
    """Return the printed noise std of one round, ``2 T sqrt(2 ln(2 T / delta)) / epsilon``, for rows of norm 1."""
    return 2.0 * PRINTED_ROUNDS * math.sqrt(2.0 * math.log(2.0 * PRINTED_ROUNDS / delta)) / epsilon


def noisy_step(moment: Matrix, directions: Matrix, *, std: float, rows_kept: int, rng: np.random.Generator) -> Matrix:
    """Run one round of DPS-PCA: multiply directions by the second moment, add noise, orthonormalize and truncate.

    Only some rows of ``directions`` are nonzero, and only these are used in the product.
    """
    rows = np.flatnonzero(directions.any(axis=1))
    with one_thread():
        product = moment[rows].T @ directions[rows]
    return truncated(completed(product + std * rng.standard_normal(product.shape)), rows_kept=rows_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The error bounds of Theorem 4.3 for one model and noise.

    Parameters
    ----------
    model : Model
    noise_std : float
        The std of the noise in one round, for all providers together, in units of rows that are not scaled to norm 1.
    constant : float
        The constant C_1 of equation (4.2), which the paper does not state.
    failure : float
        The allowed failure probability ``2 T exp(-nu^2 / 2)``, from which nu follows.

    Notes
    -----
    Let l = 100 and l' = 10 be the eigenvalues above and below the eigengap, and ``gamma* = (3 l' + l) / (3 l + l')``.
    The smallest tau satisfies ``2 k (sqrt(s_kept) + sqrt k + nu) / tau <= n l / noise_std``. Then
    ``gamma = gamma* / (1 - tau)``. Some printed symbols are illegible in the available text, so the grouping of terms
    in (4.3) is our interpretation.
    """

    model: Model
    noise_std: float
    constant: float = 1.0
    failure: float = 0.05

    @property
    def tau(self) -> float:
        """The smallest tau that satisfies the condition of the theorem."""
        k = self.model.n_components
        nu = math.sqrt(2.0 * math.log(2.0 * PRINTED_ROUNDS / self.failure))
        signal = 100.0 * self.model.n_records / self.noise_std
        return 2.0 * k * (math.sqrt(self.model.rows_kept) + math.sqrt(k) + nu) / signal

    @property
    def gamma(self) -> float:
        """The effective eigengap ratio gamma; if it is 1 or more, the theorem gives no bound."""
        return (130.0 / 310.0) / (1.0 - self.tau) if self.tau < 1.0 else math.inf

    @property
    def exists(self) -> bool:
        """True if the noise is small enough for the theorem."""
        return self.gamma < 1.0

    @property
    def sampling(self) -> float:
        """The bound (4.2) on the error from sampling."""
        k, s, d, n = (getattr(self.model, name) for name in ("n_components", "n_relevant", "n_features", "n_records"))
        ratio = math.sqrt(100.0 * 10.0) / 90.0
        return float(
            self.constant * math.sqrt(k) / (1.0 - self.gamma**0.25) * ratio * math.sqrt(s * (k + math.log(d)) / n)
        )

    @property
    def privacy(self) -> float:
        """The bound (4.3) on the error from privacy."""
        k, s, kept = self.model.n_components, self.model.n_relevant, self.model.rows_kept
        return float(
            (1.0 + 2.0 * math.sqrt(k * s / kept))
            / (math.sqrt(3.0) * (1.0 - self.gamma**0.25))
            * self.tau
            / (1.0 - self.tau)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The result of a compared method: components as orthonormal rows, and the directions (d, k) after each round."""

    components: Matrix
    rounds: tuple[Matrix, ...] = ()


class Draw:
    """One draw of rows from a model, on which each compared method runs once at each (epsilon, delta).

    Parameters
    ----------
    model : Model
    rows : array
        Rows of norm 1.
    truth : array
        The true directions as columns.
    run : int
        The number of the draw. Keys are derived from it, so every number is reproducible.
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
        """Return the distance of a method's components from the true directions."""
        return self.to_truth(self.answer(arm, epsilon=epsilon, delta=delta).components)

    def trajectory(self, arm: Arm, *, epsilon: float, delta: float) -> list[float]:
        """Return the distances from the true directions of the public start, and of the directions after each round."""
        start = start_directions(self.model.n_features, self.model.n_components)
        rounds = self.answer(arm, epsilon=epsilon, delta=delta).rounds
        return [self.to_truth(directions.T) for directions in (start, *rounds)]

    def to_truth(self, components: Matrix) -> float:
        """Return the distance of orthonormal rows from the true directions."""
        return subspace_distance(components, self.truth.T)

    def answer(self, arm: Arm, *, epsilon: float, delta: float) -> Answer:
        """Return the result of a compared method; it runs at the first call, and the result is cached."""
        requested = (arm.name, epsilon, delta)
        if requested not in self._answers:
            self._answers[requested] = self._run(arm, epsilon=epsilon, delta=delta)
        return self._answers[requested]

    @cached_property
    def non_private(self) -> Mapping[str, Matrix]:
        """The components without noise: the leading eigenvectors, and the limit of iterations with truncation."""
        moment = self.moment
        _, leading = leading_eigenpairs(moment, self.model.n_components)
        directions = np.ascontiguousarray(leading.T)
        for _ in range(FREE_STEPS):
            directions = truncated_step(moment, directions, rows_kept=self.model.rows_kept)
        return {NON_PRIVATE: leading, TRUNCATED: directions.T}

    @property
    def start(self) -> float:
        """The distance of the public start directions from the true directions."""
        return self.to_truth(start_directions(self.model.n_features, self.model.n_components).T)

    def unscaled(self, *, epsilon: float, delta: float) -> list[Matrix]:
        """Return the components after each round with the printed noise, on rows that are not scaled to norm 1.

        This repeats the simulation in the paper. Its rows have norm about ``sqrt(Model.squared_norm)``, but its noise
        is for norm 1, so there is no privacy guarantee. Instead of scaling the rows up, the noise is scaled down.
        """
        model = self.model
        rng = np.random.default_rng([_SEED, self.run, round(1e6 * epsilon), round(1e6 * delta)])
        std = printed_std(epsilon=epsilon, delta=delta) / model.squared_norm
        directions, found = start_directions(model.n_features, model.n_components), []
        moment = self.moment
        for _ in range(PRINTED_ROUNDS):
            directions = noisy_step(moment, directions, std=std, rows_kept=model.rows_kept, rng=rng)
            found.append(directions.T)
        return found

    @cached_property
    def moment(self) -> Matrix:
        """The second moment of the rows without noise."""
        return self.rows.form_moment()

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
