"""Differentially private PCA as a scikit-learn transformer."""

from collections.abc import Mapping
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_array, check_is_fitted

from dpca.artifacts.subspace import PrivateSubspace
from dpca.installed import needing
from dpca.schemas.schema import Schema
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.refinement.refined_release import AUTO
from flows.estimators.base import UNNAMED, PrivateEstimator
from flows.estimators.memory import InMemoryBudget
from flows.estimators.tables import quoting_no_value
from flows.requests import SubspaceRequest
from storage.workspace import PopulationBudget

_LEAST = 1e-12
"""Smallest variance in the model of `PrivatePCA.score`, relative to the largest variance."""


class PrivatePCA(PrivateEstimator):
    """Differentially private PCA of rows, with the data of one person in each row.

    Each new fit charges a privacy budget once.

    Parameters
    ----------
    n_components : int or "auto"
        Number of components, below the number of columns. ``auto`` takes all components above the noise, at least one.
    epsilon, delta : float
        The guarantee of a fit, including centring and the choice of a clip norm.
    clip_norm : float or "quantile:Q"
        Bound on the norm of a row; longer rows are scaled down to it. A number must come from public knowledge.
        ``quantile:Q`` chooses the bound privately at a quantile of the norms, at a cost within epsilon.
    mechanism : str
        Name of a mechanism, as in ``dpca subspace fit``.
    relation : {"add_remove", "zero_out", "replace_one"}, optional
        Neighboring relation; by default the relation of the budget.
    center : {"private", "none"}
        Center of the components. ``private`` is a mean that is released too, at a cost within epsilon. ``none`` is the
        origin.
    row_policy : {"clip", "normalise"}
        ``clip`` scales down rows that are longer than the clip norm; ``normalise`` scales every row to the clip norm.
    rounds : {"auto", 1, 2, 3}
        Number of rounds of ``analyze_gauss`` that share the budget; later rounds need less noise. ``auto`` depends on
        public facts alone.
    like : str, optional
        An earlier release of the same columns in the registry of this home, as ``"NAME@VERSION"``. Its directions and
        mean replace the first rounds, so the whole budget goes into one round of ``analyze_gauss``.
    schema : Schema, mapping or path, optional
        The declared schema of a raw table, as of ``dpca dataset ingest --table-schema``. Fits and transforms then take
        data frames with the columns of the schema, and encode them. Noise that contradicts the schema is removed.
    refine : str, optional
        Method that denoises the components, at no charge; by default ``auto`` if the mechanism allows it.
    settings : mapping, optional
        Parameters of the mechanism.
    records_at_most : int, optional
        Public upper bound on the number of rows. ``delta`` must be below its inverse.
    slot : str, optional
        A name such as ``"2026-11"`` for one release, which is charged once. Later fits with this slot and
        equal parameters return this release, whatever their rows. With a budget in a ledger, this includes fits in
        other processes. Without a slot, each fit is a new release and a new charge.
    budget : InMemoryBudget or PopulationBudget, optional
        The charged budget; ``Workspace.open().budget("patients")`` returns a budget in a ledger. Without a budget,
        nothing bounds the sum of several fits.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
    mean_ : array of shape (n_features,)
        The released mean of the clipped rows; zeros if the center is the origin.
    explained_variance_ : array of shape (n_components,)
        Variance of the clipped rows along each component, as in scikit-learn, without the contribution of the noise.
        The divisor is the released number of rows, not this number minus 1. NaN if the release has no such number: with
        ``center="none"`` in one round, and if no matrix is kept, as for some mechanisms and for many columns.
    explained_variance_ratio_ : array of shape (n_components,)
        Ratio of each variance to the total variance of all columns, without the contribution of the noise. The sum is
        at most 1. Around the origin, mean squares replace variances. NaN if the release does not contain the ratio.
    noise_variance_ : float
        Mean variance of the clipped rows along the directions outside the subspace, as in scikit-learn. It is not the
        variance of the privacy noise, which ``artifact_.manifest["plan"]`` states. NaN where `explained_variance_` is
        NaN.
    singular_values_ : array of shape (n_components,)
        Square roots of the sums of squares of the clipped rows along each component, without the contribution of the
        noise. NaN if the release does not contain these sums.
    n_components_, n_features_in_ : int
    feature_names_in_ : array of str
        Present if the columns have names.
    clip_norm_ : float
    artifact_ : PrivateSubspace
        The release, with its self-assessment in ``artifact_.outcome``.
    published_ : str or None
        The published version, such as ``"patients@1"``; None without a budget in a ledger.

    Notes
    -----
    There is no ``random_state``, because anyone with the seed could subtract the noise. Therefore two fits on equal
    rows differ, and estimators have the tag ``non_deterministic``. A second fit with equal parameters and no slot
    issues a `RepeatedFitWarning` before it is charged.

    See Also
    --------
    dpca.Budget : a budget in memory.
    dpca.open_budget : a persistent budget, in the ledger of this home.
    dpca.fit_subspace : the same for a stored dataset, which may be larger than memory.

    Examples
    --------
    >>> import dpca
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(5000, 10)) * [3, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    >>> budget = dpca.Budget(epsilon=4, delta=1e-6)
    >>> model = dpca.PrivatePCA(2, epsilon=1, delta=1e-7, clip_norm=6, budget=budget)
    >>> model.fit(rows).transform(rows).shape
    (5000, 2)
    >>> model.artifact_.is_private
    True
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        epsilon: float | None = 1.0,
        delta: float | None = 1e-6,
        clip_norm: float | str | None = "quantile:0.9",
        mechanism: str = "analyze_gauss",
        relation: Relation | None = None,
        center: str = "private",
        row_policy: str = "clip",
        rounds: int | str = "auto",
        like: str | None = None,
        schema: Schema | Mapping[str, Any] | str | Path | None = None,
        refine: str | None = None,
        settings: Mapping[str, str] | None = None,
        records_at_most: int | None = None,
        slot: str | None = None,
        budget: InMemoryBudget | PopulationBudget | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.mechanism = mechanism
        self.relation = relation
        self.center = center
        self.row_policy = row_policy
        self.rounds = rounds
        self.like = like
        self.schema = schema
        self.refine = refine
        self.settings = settings
        self.records_at_most = records_at_most
        self.slot = slot
        self.budget = budget

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the components of rows, or return the release of the slot.

        Parameters
        ----------
        X : table of shape (n_rows, n_features)
            Array, scipy sparse, DataFrame (pandas or polars), AnnData, Dask array or DataFrame; a row is a record.
            A Dask array, and an AnnData backed by its file, are read piece by piece.
        y : ignored

        Raises
        ------
        ValueError, Refused, BudgetExhausted, Conflict
            In each case before anything is charged, with a message of one line. Conflict if the slot has other terms.
        """
        self._state(self._release(self._request(), X))
        return self

    def transform(self, X: Any) -> Any:
        """Return the scores of rows along the components. They are not private, as each is a function of its row.

        Parameters
        ----------
        X : table of shape (n_rows, n_features), as for `fit`

        Returns
        -------
        array of shape (n_rows, n_components), or the container of `set_output`
            For a Dask array or DataFrame, a lazy Dask array.
        """
        check_is_fitted(self)
        scores = partial(_scores, components=self.components_, mean=self.mean_)
        return self._table(X).map(scores, width=self.n_components_)

    def inverse_transform(self, X: Any) -> NDArray[np.float64]:
        """Return the points of the subspace that have the scores ``X``."""
        check_is_fitted(self)
        artifact: PrivateSubspace = self.artifact_
        with quoting_no_value():
            scores = check_array(X, dtype=np.float64)
        return artifact.inverse_transform(scores)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of rows, as `sklearn.decomposition.PCA.score`. It is not private.

        Parameters
        ----------
        X : table of shape (n_rows, n_features), as for `fit`
        y : ignored

        Returns
        -------
        float
            Mean log-likelihood under a Gaussian model. Its covariance has the released variances along the components,
            and `noise_variance_`, if it is not 0, along all other directions. NaN where `explained_variance_` is NaN.

        References
        ----------
        Tipping and Bishop, Probabilistic principal component analysis, 1999.
        """
        check_is_fitted(self)
        variances, table = self.explained_variance_, self._table(X)
        if not np.isfinite(variances).all():
            return float("nan")
        noise = max(self.noise_variance_, _LEAST * float(variances.max(initial=0.0)), np.finfo(float).tiny)
        along = np.maximum(variances, noise)
        terms = partial(_quadratic, components=self.components_, mean=self.mean_, along=along, noise=noise)
        quadratic = np.asarray(table.map(terms, width=1), dtype=np.float64)
        left = self.n_features_in_ - self.n_components_
        constant = self.n_features_in_ * np.log(2.0 * np.pi) + np.log(along).sum() + left * np.log(noise)
        return float(-0.5 * (quadratic.mean() + constant))

    def plot(self, component: int | None = None, *, theme: str = "light") -> Any:
        """Draw the released eigenvalues and the range of noise alone, or the largest loadings of one component.

        Parameters
        ----------
        component : int, optional
            Number of the component, from 1; by default the eigenvalues are drawn.
        theme : {"light", "dark"}

        Returns
        -------
        matplotlib.figure.Figure
            A notebook displays it if it is the last expression of a cell.

        Raises
        ------
        NotInstalled
            When matplotlib, from the extra ``plots``, is missing.
        """
        from flows.families.restated_subspace import noise_edge_of
        from flows.reports.spectrum import Spectrum, top_loadings

        check_is_fitted(self)
        with needing("a plot", extra="plots"):
            import matplotlib  # noqa: F401
        from flows.reports.release_charts import loadings_chart, scree_chart

        artifact: PrivateSubspace = self.artifact_
        if component is not None:
            return loadings_chart(top_loadings(artifact, component=component), component=component, theme=theme)
        return scree_chart(Spectrum.of(artifact, noise_edge=noise_edge_of(artifact)), theme=theme)

    def _request(self) -> SubspaceRequest:
        """Return the request of a fit, which has all options except rows and budget, as plain values."""
        if self.clip_norm is None:
            raise InvalidInput(
                "clip_norm=None sets no bound on rows; state a public bound on their norm, not one "
                "measured on them (for values in [-1, 1], sqrt(n_features)), or 'quantile:0.9' to choose one "
                "privately, within epsilon."
            )
        epsilon, delta = self._guarantee()
        return SubspaceRequest(
            dataset=UNNAMED,
            publish=UNNAMED,
            mechanism=self.mechanism,
            epsilon=epsilon,
            delta=delta,
            settings=self.settings or {},
            components=_whole_or_auto(self.n_components),
            clip_norm=self.clip_norm if isinstance(self.clip_norm, str) else float(self.clip_norm),
            row_policy=self.row_policy,
            center=self.center,
            rounds=self.rounds,
            like=self.like,
            refine=self.refine,
        )

    def _state(self, artifact: PrivateSubspace) -> None:
        """Set the fitted attributes from the release."""
        left = artifact.n_features - artifact.n_components
        ratio, total = artifact.explained_variance_ratio, artifact.manifest.get("total_variance")
        count = _released_count(artifact)
        self.components_ = artifact.components
        self.mean_ = np.zeros(artifact.n_features) if artifact.mean is None else artifact.mean
        self.n_components_ = artifact.n_components
        self.clip_norm_ = artifact.manifest["clip_norm"]
        self.explained_variance_ratio_ = np.full(artifact.n_components, np.nan) if ratio is None else ratio
        variance = np.nan if total is None or count is None else total / count
        self.singular_values_ = np.sqrt(self.explained_variance_ratio_ * (np.nan if total is None else total))
        self.explained_variance_ = self.explained_variance_ratio_ * variance
        self.noise_variance_ = float(variance - self.explained_variance_.sum()) / left


def _scores(rows: Any, *, components: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows @ components.T) - components @ mean


def _quadratic(
    rows: Any,
    *,
    components: NDArray[np.float64],
    mean: NDArray[np.float64],
    along: NDArray[np.float64],
    noise: float,
) -> NDArray[np.float64]:
    """Return the squared Mahalanobis norm of each row around the mean, in one column."""
    scores = _scores(rows, components=components, mean=mean)
    squares = rows.multiply(rows) if sparse.issparse(rows) else np.square(rows)
    norms = np.asarray(squares.sum(axis=1)).ravel() - 2.0 * np.asarray(rows @ mean).ravel() + mean @ mean
    rest = np.maximum(norms - np.square(scores).sum(axis=1), 0.0)
    return np.asarray((np.square(scores) / along).sum(axis=1) + rest / noise)[:, None]


def _whole_or_auto(n_components: Any) -> int | str:
    """Return the number of components as an int, or ``auto`` if the release chooses it."""
    if n_components == AUTO:
        return AUTO
    if isinstance(n_components, bool) or not isinstance(n_components, Integral):
        raise InvalidInput(
            f"n_components={n_components!r} must be a whole number, or 'auto' for all components "
            "above the noise; a share of the variance is known only after a release."
        )
    return int(n_components)


def _released_count(artifact: PrivateSubspace) -> float | None:
    """Return the noisy number of rows; None if the artifact kept neither its rounds nor a centred matrix."""
    if "rounds" in artifact.outcome:
        return float(artifact.outcome["rounds"]["noised_records"])
    constant = (artifact.outcome.get("noise") or {}).get("constant")
    if artifact.matrix is None or not constant:
        return None
    return max(float(artifact.matrix[-1]) / float(constant) ** 2, 1.0)
