"""Comparison of methods (arms) for private subspaces, by captured variance and by loss of classification accuracy.

*Mechanisms of dpca* run through the curator. The rows are public, so nothing is charged. Keys come from seeds, so that
every number is reproducible; for private rows, a key comes from the operating system.

*Printed algorithms* add the published noise. No release may use them, because the noise does not satisfy the epsilon
that the paper claims, and dpca refuses these formulas. Here they run on public rows with a seed, without the curator.

*Classification protocol.* Each split permutes the records. The first half is used for the subspace. From the other
half, a tenth of all records trains and tunes a classifier, and the rest tests it. Projections are standardized by the
mean and std of the training rows. The classifier is scikit-learn's ``LinearSVC``. Its constant C is chosen from `COSTS`
by cross-validation on the training rows, for every method and split. With several classes, each class is classified
against the rest.

*Loss.* The loss of a method in a split is the accuracy with the best k directions of the first half, minus the accuracy
with the method's directions, in percentage points. Draws of a method in one split are averaged. The standard error is
over splits.

The paper repeats 10 times over 10 splits. It does not state its values of C, how scores were scaled, and which labels
of MNIST were used. So absolute accuracies are not compared.

>>> import numpy as np
>>> from scipy import sparse
>>> rows = sparse.csr_array(np.eye(6)[np.arange(600) % 4])
>>> found = Arm(mechanism="analyze_gauss").run(Rows.of(rows), n_components=2, epsilon=1.0, delta=1e-4, seed=(1,))
>>> found.shape
(2, 6)
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np
from scipy import sparse, stats

from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.metrics import captured_beyond_first, captured_variance, squared_distance
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from dpca_tasks.threads import one_thread
from papers.lib.ascents import ascend
from papers.lib.experiments import Matrix, orthonormal, run_mechanism
from papers.lib.public_data import LabelledRows, second_moment

OVERSAMPLING, ITERATIONS, MIX = 3, 8, 0.5
"""The oversampling and iterations of the noisy power method, as in dpca; and the mu of DP-SPCA, which the paper does
not state.
"""


def wishart(rows: sparse.csr_array, *, requested: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by the printed Wishart mechanism of Jiang, Xie and Zhang.

    It adds a Wishart matrix with d + 1 degrees of freedom to the second moment S.
    """
    d = requested.n_features
    root = rng.standard_normal((d + 1, d))
    noisy = second_moment(rows) + FORMULAS["wishart"].noise(requested) * (root.T @ root)
    return leading_eigenpairs(noisy, requested.n_components)[1]


def noisy_power(rows: sparse.csr_array, *, requested: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by the printed noisy power method of Hardt and Price (PPI).

    Its noise is calibrated to one changed entry of the matrix.
    """
    requested = power_settings(requested)
    directions = orthonormal(rng.standard_normal((requested.n_features, requested.n_components)))
    scale = FORMULAS["noisy_power"].noise(requested)
    for _ in range(requested.steps):
        noise = scale * float(np.abs(directions).max()) * rng.standard_normal(directions.shape)
        product = rows.T @ (rows @ directions) + noise
        directions = orthonormal(product)
    with one_thread():
        left, _, _ = np.linalg.svd(product, full_matrices=False)
    return np.ascontiguousarray(left[:, : requested.n_components - OVERSAMPLING].T)


def power_settings(requested: Settings) -> Settings:
    """Return the settings of the noise formula of the noisy power method: directions, iterations, and the request."""
    return replace(requested, n_components=requested.n_components + OVERSAMPLING, steps=ITERATIONS)


def stochastic_settings(requested: Settings) -> Settings:
    """Return the settings of the noise formulas of DP-SPCA and DP-VRPCA.

    ``steps`` is the number of passes over the n rows, with one step per row. The default of mu is `MIX`.
    """
    return replace(requested, steps=requested.steps * requested.n_records, mix=requested.mix or MIX)


def dp_spca(rows: sparse.csr_array, *, requested: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by DP-SPCA as printed (Algorithm 1), with step size 1 / 2n and gradient ``-2 x (x^T V)``."""
    printed = stochastic_settings(requested)
    noise = 2.0 * FORMULAS["dp_spca"].noise(printed)  # the gradient has norm at most G = 2
    return ascend(rows, requested.n_components, noise_std=noise, rng=rng, steps=printed.steps)[0]


def dp_vrpca(rows: sparse.csr_array, *, requested: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by DP-VRPCA as printed (Algorithm 2): step size 1 / n and the signs of equation (14)."""
    printed = stochastic_settings(requested)
    found, _ = ascend(
        rows,
        requested.n_components,
        noise_std=FORMULAS["dp_vrpca"].noise(printed),
        rng=rng,
        reduced=True,
        steps=printed.steps,
        epochs=printed.epochs,
    )
    return found


PRINTED: dict[str, Callable[..., Matrix]] = {
    "dp_spca": dp_spca,
    "dp_vrpca": dp_vrpca,
    "noisy_power": noisy_power,
    "wishart": wishart,
}
"""The algorithms, by their row names in `dpca_tasks.accounting.published.FORMULAS`."""
FORMULA_SETTINGS: dict[str, Callable[[Settings], Settings]] = {
    "dp_spca": stochastic_settings,
    "dp_vrpca": stochastic_settings,
    "noisy_power": power_settings,
    "wishart": lambda requested: requested,
}
"""The settings at which each formula is evaluated."""


def formula_epsilon(name: str, requested: Settings) -> float:
    """Return a bound on the true epsilon of a printed noise formula, at the requested delta.

    It is an upper bound, unless the entry of the formula states a lower bound. It is infinite if no epsilon is valid,
    or if the losses are too large for the accountant.
    """
    row = FORMULAS[name]
    try:
        found = row.bracket(requested)
    except OverflowError:
        return math.inf
    return found.lower if row.bound == "at least" else found.upper


_LONGER = {"steps": "T/n=", "epochs": "m="}
"""How the names of arms show the settings that give a printed algorithm more steps."""

type Calibration = Literal["tight", "paper", "printed"]
WIDE, NARROW, SMALL = 5_000, 1_000, 500
"""Numbers of features: above WIDE only arms without a matrix run, up to NARROW all arms run, and up to SMALL several
draws are cheap."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Public rows, as a matrix and as a block source for the curator."""

    matrix: sparse.csr_array
    source: ArrayBlocks

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> Self:
        """Wrap rows of norm at most 1."""
        return cls(matrix=matrix, source=ArrayBlocks(matrix))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A compared method, which is a mechanism with settings and with a calibration of its noise.

    Attributes
    ----------
    mechanism : str
    calibration : {"tight", "paper", "printed"}
        ``tight`` is the smallest noise for the guarantee. ``paper`` is the published noise, if dpca supports it.
        ``printed`` is published noise that dpca refuses; the function in `PRINTED` adds it.
    settings : Mapping
    relation : Relation
    refined : bool
        True if the release is refined with the method ``auto``.
    ranges : {"narrow", "medium", "wide"}
        The largest number of features on which the method runs: `NARROW`, `WIDE`, or any number.
    dear : bool
        True if a run is slow: several seconds on tens of thousands of records.
    """

    mechanism: str
    calibration: Calibration = "tight"
    settings: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = "add_remove"
    refined: bool = False
    ranges: Literal["narrow", "medium", "wide"] = "narrow"
    dear: bool = False

    @property
    def name(self) -> str:
        """The name in tables, which states the mechanism, its calibration and its other settings."""
        longer = "".join(f", {_LONGER[name]}{value}" for name, value in self.settings.items() if name in _LONGER)
        return f"{self.mechanism} {self.calibration}{' refined' if self.refined else ''}{longer}"

    @property
    def bound(self) -> str:
        """Whether the stated true epsilon is an upper bound ("at most") or a lower bound ("at least")."""
        return (
            FORMULAS[self.mechanism].bound.replace("between", "at most") if self.calibration == "printed" else "at most"
        )

    def fits(self, n_features: int) -> bool:
        """Return whether the method runs on data with this number of features."""
        limit = {"narrow": NARROW, "medium": WIDE, "wide": math.inf}[self.ranges]
        return n_features <= limit

    def run(self, rows: Rows, *, n_components: int, epsilon: float, delta: float, seed: tuple[int, ...]) -> Matrix:
        """Run the method on rows, and return the components as rows.

        Raises
        ------
        Refused
            If the mechanism refuses this epsilon and delta.
        """
        if self.calibration == "printed":
            requested = self._settings_of(rows, n_components=n_components, epsilon=epsilon, delta=delta)
            return PRINTED[self.mechanism](rows.matrix, requested=requested, rng=np.random.default_rng(seed))
        mechanism, problem, target = self._requested(rows, n_components=n_components, epsilon=epsilon, delta=delta)
        key = hashlib.sha256(repr((self.mechanism, self.calibration, epsilon, delta, *seed)).encode()).digest()
        found = run_mechanism(mechanism, problem, target, rows.source, key=key)
        if self.refined:
            found = refine_release(found, n_components=n_components, method="auto").subspace
        return np.asarray(found.components)

    def true_epsilon(self, rows: Rows, *, n_components: int, epsilon: float, delta: float) -> float:
        """Return an upper bound on the true epsilon of the noise at ``delta``; infinite if no epsilon is valid.

        Raises
        ------
        Refused
            If the mechanism refuses this epsilon and delta.
        """
        if self.calibration == "printed":
            requested = self._settings_of(rows, n_components=n_components, epsilon=epsilon, delta=delta)
            return formula_epsilon(self.mechanism, FORMULA_SETTINGS[self.mechanism](requested))
        mechanism, problem, target = self._requested(rows, n_components=n_components, epsilon=epsilon, delta=delta)
        plan = mechanism.plan(problem, target)
        return epsilon if plan.real_epsilon is None else plan.real_epsilon

    def _settings_of(self, rows: Rows, *, n_components: int, epsilon: float, delta: float) -> Settings:
        n, d = rows.matrix.shape
        return Settings(
            epsilon=epsilon, delta=delta, n_records=n, n_features=d, n_components=n_components, **self.settings
        )

    def _requested(
        self, rows: Rows, *, n_components: int, epsilon: float, delta: float
    ) -> tuple[Any, Problem, PrivacyTarget]:
        n, d = rows.matrix.shape
        kind = MECHANISMS[self.mechanism]
        settings = dict(self.settings)
        if "calibration" in {each.name for each in fields(kind)}:
            settings["calibration"] = self.calibration
        elif self.calibration == "paper":
            raise Refused(f"{self.mechanism} has no calibration=paper; use calibration=tight.")
        problem = Problem(n_features=d, clip_norm=1.0, relation=self.relation, records_at_most=n)
        target = PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True)
        return kind(n_components=n_components, **settings), problem, target


_ONE_ROUND = {"rounds": 1}  # the published release
ANALYZE_GAUSS = Arm(mechanism="analyze_gauss", settings=_ONE_ROUND, ranges="wide")
REFINED = Arm(mechanism="analyze_gauss", settings=_ONE_ROUND, refined=True, ranges="medium")
GAUSSIAN = Arm(mechanism="analyze_gauss", calibration="paper", ranges="wide")
MOD_SULQ = Arm(mechanism="mod_sulq", calibration="paper", relation="replace_one", ranges="medium")
DP_SPCA = Arm(mechanism="dp_spca", settings={"integrated_time": 300.0})
DP_VRPCA = Arm(mechanism="dp_vrpca")
PRINTED_SPCA = Arm(mechanism="dp_spca", calibration="printed")
PRINTED_VRPCA = Arm(mechanism="dp_vrpca", calibration="printed")
LONG_SPCA = Arm(mechanism="dp_spca", calibration="printed", settings={"steps": 10}, dear=True)
LONG_VRPCA = Arm(mechanism="dp_vrpca", calibration="printed", settings={"epochs": 30}, dear=True)
"""The printed algorithms with more steps: the smallest number, in a sweep on a9a, beyond which the gain is small."""
PPI = Arm(mechanism="noisy_power", calibration="printed", ranges="wide")
COMPARED = (ANALYZE_GAUSS, REFINED, GAUSSIAN, MOD_SULQ)
"""The arms whose losses are reported."""
_DECLARED = (
    *COMPARED,
    Arm(mechanism="mod_sulq", ranges="medium"),
    Arm(mechanism="noisy_power", ranges="wide"),
    PPI,
    DP_SPCA,
    Arm(
        mechanism="dp_spca",
        calibration="paper",
        settings={"form": "one_row", "integrated_time": 100.0},
        dear=True,
    ),
    PRINTED_SPCA,
    LONG_SPCA,
    DP_VRPCA,
    PRINTED_VRPCA,
    LONG_VRPCA,
    Arm(mechanism="wishart"),
    Arm(mechanism="wishart", calibration="printed"),
    Arm(mechanism="laplace"),
    Arm(mechanism="exponential"),
    Arm(mechanism="local_gaussian", relation="zero_out"),
    Arm(mechanism="smooth_sensitivity", dear=True),
    Arm(mechanism="propose_test_release", dear=True),
)
ARMS = (
    *_DECLARED,
    *(Arm(mechanism=name) for name in MECHANISMS if name not in {arm.mechanism for arm in _DECLARED}),
)
"""Every mechanism: with tight noise, with published noise if dpca supports it, and as printed if dpca refuses it."""
BOUNDS = {arm.name: arm.bound for arm in ARMS}
"""The direction of the bound on the true epsilon, by arm."""
TRAINED, COSTS, FOLDS = 0.1, (0.01, 1.0, 100.0), 3
"""The share of all records that trains and tunes the classifier; the values of C, and the folds that select one."""
FORMED = 5_000
"""The number of features up to which the second moment is formed to find the best directions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """One random split of the records: a half for the subspace, and a half for classification of projected rows."""

    reserved: sparse.csr_array
    train: sparse.csr_array
    test: sparse.csr_array
    train_labels: Matrix
    test_labels: Matrix

    @classmethod
    def of(cls, data: LabelledRows, *, seed: Sequence[int]) -> Self:
        """Split the records at random, by a seed."""
        order = np.random.default_rng(seed).permutation(data.n_records)
        half = data.n_records // 2
        trained = half + max(2, round(TRAINED * data.n_records))
        train, test = order[half:trained], order[trained:]
        return cls(
            reserved=data.rows[order[:half]],
            train=data.rows[train],
            test=data.rows[test],
            train_labels=data.labels[train],
            test_labels=data.labels[test],
        )

    def accuracy(self, components: Matrix) -> float:
        """Return the accuracy of a linear SVM on the rows projected on ``components``, in percent."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.model_selection import cross_val_score
        from sklearn.svm import LinearSVC

        train, test = self.train @ components.T, self.test @ components.T
        mean, std = train.mean(axis=0), train.std(axis=0)
        std[std == 0.0] = 1.0
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            scaled = (train - mean) / std
            scores = [
                cross_val_score(LinearSVC(C=cost, dual=False), scaled, self.train_labels, cv=FOLDS).mean()
                for cost in COSTS
            ]
            best = COSTS[int(np.argmax(scores))]
            found = LinearSVC(C=best, dual=False).fit(scaled, self.train_labels)
        return 100.0 * float(found.score((test - mean) / std, self.test_labels))

    def majority(self) -> float:
        """Return the accuracy, in percent, of always predicting the most frequent label of the training rows."""
        labels, counts = np.unique(self.train_labels, return_counts=True)
        return 100.0 * float(np.mean(self.test_labels == labels[np.argmax(counts)]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """The best directions of rows without noise, and measures of other directions relative to them."""

    rows: sparse.csr_array
    best: Matrix
    values: Matrix
    order: int

    @classmethod
    def of(cls, rows: sparse.csr_array, *, n_components: int) -> Self:
        """Compute the leading eigenpairs of the second moment of rows, which is formed only if it is not too large."""
        d = int(rows.shape[1])
        with one_thread():
            if d <= FORMED:
                dense = rows.toarray() if rows.nnz > 0.05 * rows.shape[0] * d else rows
                moment = dense.T @ dense
                values, vectors = np.linalg.eigh(moment.toarray() if sparse.issparse(moment) else moment)
                best, values = vectors[:, ::-1][:, :n_components].T, values[::-1][:n_components]
            else:
                _, singular, right = sparse.linalg.svds(rows, k=n_components, rng=np.random.default_rng(0))
                best, values = right[::-1], singular[::-1] ** 2
        return cls(rows=rows, best=np.ascontiguousarray(best), values=values, order=d)

    def measured(self, components: Matrix) -> dict[str, float]:
        """Compare a subspace with the best subspace.

        Returns
        -------
        dict
            ``distance`` is the squared distance of the two subspaces, ``captured`` the captured variance, and
            ``beyond`` the captured variance without the first direction. See `dpca_tasks.metrics`.
        """
        rows = sparse.linalg.aslinearoperator(self.rows)
        moment, values = rows.T @ rows, self.values
        return {
            "distance": squared_distance(components, self.best),
            "captured": captured_variance(moment, components, values=values),
            "beyond": captured_beyond_first(moment, components, first=self.best[0], values=values),
        }


def random_subspace(n_features: int, n_components: int, *, seed: Sequence[int]) -> Matrix:
    """Return a uniformly random subspace as orthonormal rows."""
    with one_thread():
        columns = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_features, n_components)))[0]
    return np.ascontiguousarray(columns.T)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values over splits, and the standard error of this mean."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def less_lost(less: Sequence[float], more: Sequence[float]) -> float:
    """Return the p-value of a paired one-sided t-test that the first method loses less accuracy than the second."""
    found: Any = stats.ttest_rel(less, more, alternative="less")
    return float(found.pvalue)
