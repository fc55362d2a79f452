"""The interface of all mechanisms.

This module defines the public facts of a request, the privacy target, the plan of a release, and the results.

A mechanism is one frozen class, whose fields are its parameters. Its `plan` turns public facts into noise scales and a
privacy event. Its `run` calls the curator for the planned steps and post-processes the answers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.epsilon_bracket import epsilon_of_event
from dpca_tasks.accounting.events import Event, Relation
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.privacy.curator import Curator

Calibration = Literal["tight", "paper"]
Center = Literal["none", "private"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Public facts of a request to any family of mechanisms.

    Parameters
    ----------
    relation : {"add_remove", "zero_out", "replace_one"}
    records_at_most : int
        Public bound n_ref on the number of records. It only scales public choices and limits delta.
    records_declared : bool
        Whether the user declared ``records_at_most``; a default value may be wrong.
    """

    relation: Relation = "add_remove"
    records_at_most: int = 100_000
    records_declared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Terms):
    """Public facts of a request for a subspace.

    Parameters
    ----------
    n_features : int
        Declared columns d.
    clip_norm : float, data units
        Bound on a record's norm.
    center : {"none", "private"}
        Whether components are computed around the mean of the rows, which is then released too.
    spectrum : str
        The user's declaration about the spectrum (`dpca_tasks.forecast.noise_forecast`); empty if there is none. It
        is used only for forecasts: no noise depends on it.
    **others
        As for `Terms`.
    """

    n_features: int
    clip_norm: float
    center: Center = "none"
    spectrum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyTarget:
    """The requested guarantee: (epsilon, delta) in the relation of the problem.

    ``allow_large_delta`` accepts a delta that is not below one over the number of records.
    ``i_know_this_is_not_private`` accepts a result without any guarantee; private mechanisms ignore it.
    """

    epsilon: float
    delta: float
    allow_large_delta: bool = False
    i_know_this_is_not_private: bool = False


LARGE = 1_000
"""The order from which eigenpairs are computed in two threads: 1.6 times as fast at 2,000, and little below it."""

NO_GUARANTEE = PrivacyTarget(epsilon=math.inf, delta=0.0, i_know_this_is_not_private=True)
"""The target of a result that is knowingly not private."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The public plan of a release, computed before any row is read.

    ``problem`` is the `Terms` of the family. ``noise_multiplier`` is the scale of the noise divided by the sensitivity
    in each main step. ``bits`` is the grid of the records. ``notes`` state in public terms what limits the utility.

    ``event`` covers all steps, including steps that a wrapper adds. The charge of a release and every stated epsilon
    are computed from this event. ``printed`` is whether the noise follows a published formula instead of being
    calibrated to the target. ``uncertified`` is whether the event itself is not proved.

    ``noise_edge`` is the bound of released eigenvalues of noise alone, in squared clip norms
    (`dpca_tasks.mechanisms.noise_level`). It is None if no eigenvalues are released. If one noisy symmetric matrix is
    released, ``moment_noise`` names the law of its noise and ``moment_std`` is the std off the diagonal, in squared
    clip norms. ``moment_formed`` is whether that matrix is formed.

    ``level`` is the least strength of a component that can be distinguished from the noise, in records at the clip
    norm. It is None in plans of references. ``together`` is whether ``level`` is compared with the gap behind the last
    component, so that either all components are noise or none.
    """

    mechanism: str
    problem: Any
    target: PrivacyTarget
    noise_multiplier: float
    bits: int
    event: Event
    notes: tuple[str, ...] = ()
    printed: bool = False
    uncertified: bool = False
    noise_edge: float | None = None
    moment_noise: str | None = None
    moment_std: float | None = None
    moment_formed: bool = True
    rounds: int = 1
    level: float | None = None
    together: bool = False

    @property
    def epsilon_at_most(self) -> float:
        """An upper bound on the epsilon of the complete event at the target's delta; 0 if delta alone covers it."""
        found = epsilon_of_event(self.event, delta=self.target.delta, relation=self.problem.relation)
        return found if self.printed or self.uncertified else min(found, self.target.epsilon)

    @property
    def real_epsilon(self) -> float | None:
        """`epsilon_at_most` if the noise follows a published formula; None if the noise is calibrated."""
        return self.epsilon_at_most if self.printed else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes, preceded by a warning if the true epsilon of printed noise is far from the target.

        The warning appears if the true epsilon is above the target, or at most a tenth of it.
        """
        real, requested = self.real_epsilon, self.target.epsilon
        if real is None or requested / 10 < real <= requested:
            return self.notes
        if real > requested:
            gives = (
                f"epsilon {real:.4g}, which is charged instead of the requested {requested:g}; use calibration=tight"
            )
        else:
            known = (
                f"at most epsilon {real:.4g}" if real else f"epsilon 0: it is below delta={self.target.delta:g} alone"
            )
            gives = f"{known}; calibration=tight meets {requested:g} with far less noise"
        return (f"calibration=paper: the printed noise really gives {gives}.", *self.notes)

    @property
    def certified(self) -> bool:
        """True if the target is proved.

        The target is not proved if the event is uncertified, or if the true epsilon of printed noise exceeds it.
        """
        return not self.uncertified and (not self.printed or self.epsilon_at_most <= self.target.epsilon)


class Mechanism[T](Protocol):
    """The interface of all mechanisms; T is the type of the result (see `dpca_tasks.mechanisms.base`)."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def plan(self, problem: Any, target: PrivacyTarget) -> Plan:
        """Compute the noise and the event from the public facts of a request, the `Terms` of the family."""

    def run(self, curator: Curator, plan: Plan) -> T:
        """Release the planned steps, then post-process the answers."""


def check_request(problem: Problem, target: PrivacyTarget, *, n_components: int, pure: bool = False) -> None:
    """Refuse an invalid request for a subspace: `check_shape`, then `check_target`."""
    check_shape(problem, n_components=n_components)
    check_target(problem, target, pure=pure)


def check_target(problem: Terms, target: PrivacyTarget, *, pure: bool = False) -> None:
    """Refuse a guarantee that this mechanism cannot give.

    Parameters
    ----------
    problem, target
        The request.
    pure : bool
        Whether the mechanism is pure, in which case delta may be 0.

    Raises
    ------
    InvalidInput
        When a number is outside its domain.
    Refused
        When delta is not below ``1 / records_at_most``: publishing a share delta of the raw rows would satisfy such
        a guarantee.
    """
    if problem.records_at_most < 1:
        raise InvalidInput(f"records_at_most={problem.records_at_most} must be at least 1; state a public bound.")
    if not (math.isfinite(target.epsilon) and target.epsilon > 0):
        raise InvalidInput(f"epsilon={target.epsilon!r} must be positive and finite; 0.1 to 10 is usual.")
    if not (0 < target.delta < 1 or (pure and target.delta == 0)):
        raise InvalidInput(
            f"delta={target.delta!r} must lie strictly between 0 and 1; 1e-6 is usual "
            "(0 for exponential, laplace and wishart)."
        )
    if not target.allow_large_delta and target.delta * problem.records_at_most >= 1:
        raise Refused(
            f"delta={target.delta!r} is not below 1/records_at_most={1 / problem.records_at_most:.3g}; use a smaller "
            "delta, declare records_at_most if it is smaller, or insist with --allow-large-delta."
        )


def check_shape(problem: Problem, *, n_components: int) -> None:
    """Refuse invalid numbers of components and of records.

    Raises
    ------
    InvalidInput
        When the number of components is below one or not below the number of features, or ``records_at_most`` is
        below one.
    """
    if not 1 <= n_components < problem.n_features:
        raise InvalidInput(
            f"n_components={n_components} must be at least 1 and below n_features={problem.n_features}; use fewer."
        )
    if problem.records_at_most < 1:
        raise InvalidInput(f"records_at_most={problem.records_at_most} must be at least 1; state a public bound.")


def grid_warnings(problem: Problem, *, bits: int) -> tuple[str, ...]:
    """Return a warning if the grid may round small entries of wide records to zero."""
    if 2**bits >= 8 * math.sqrt(problem.n_features):
        return ()
    return (
        f"the grid has 2^{bits} steps in a record's norm, fewer than 8 sqrt(n_features): small entries may "
        "vanish; a larger epsilon gives a finer grid.",
    )


ComponentModel = Literal["topics", "mixture"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subspace:
    """The result of a subspace mechanism.

    ``components`` has shape (k, d) and orthonormal rows.

    The other fields are None unless released:

    - ``eigenvalues`` (k,) and ``spectrum`` (the same values, then smaller ones) of the noisy X^T X, in data units
      squared, not divided by n;
    - ``further`` (m - k, d), the directions of the next eigenvalues of ``spectrum``, so that another k costs nothing;
    - ``total_variance``, the noisy trace, if positive;
    - ``mean`` (d,), around which the components were computed;
    - ``clip_norm``, if it was chosen privately;
    - ``outcome``, public facts that the release itself determined, as plain JSON values.

    A release of one noisy symmetric matrix has further fields:

    - ``released``, the matrix as it left the curator, if it was formed; it is computed from extended rows if there is a
      ``mean``;
    - ``noise``, the public facts about its noise: ``law``, ``std`` off the diagonal, ``step`` of the grid, and
      ``constant``, which extends the rows;
    - ``all_eigenvalues`` (d,) of the formed matrix, around the mean if there is one.

    A release in several rounds has ``rounds`` instead of ``released`` and ``noise``: its answers, as
    `dpca_tasks.refinement.refined_rounds.Rounds`.
    """

    components: NDArray[np.float64]
    eigenvalues: NDArray[np.float64] | None = None
    spectrum: NDArray[np.float64] | None = None
    further: NDArray[np.float64] | None = None
    total_variance: float | None = None
    mean: NDArray[np.float64] | None = None
    clip_norm: float | None = None
    outcome: Mapping[str, Any] | None = None
    released: NDArray[np.float64] | None = None
    noise: Mapping[str, Any] | None = None
    all_eigenvalues: NDArray[np.float64] | None = None
    rounds: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemFactors:
    """The result of a completion mechanism; it contains no user's data.

    ``factors`` has shape (m, r), or is None if only offsets are released. ``offsets`` (m,) are subtracted from the
    ratings of items. ``counts`` (m,), if released, are noisy numbers of counted ratings.

    ``user_step`` holds the public numbers with which a user computes a factor and an offset. They are ``centre`` and
    ``prior`` (None: no own mean), and with factors also ``ridge``, ``rating_bound`` and perhaps ``unobserved``. If the
    factors are directions of a descent, its ``gains`` and ``row_norm`` replace the ridge.
    """

    factors: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64]
    counts: NDArray[np.float64] | None = None
    user_step: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Components:
    """The result of a tensor mechanism: the components of a model of records, by falling weight.

    ``components`` has shape (K, D). For ``topics`` a row holds the probabilities of words, which sum to 1; for a
    ``mixture`` it is the mean of one part, in data units. ``weights`` (K,) are positive and sum to 1: the share of
    records of each component. There may be fewer components than requested, even none; ``outcome`` reports this as
    plain JSON values.

    ``eigenvalues`` (K',) are the kept eigenvalues of the released second moment, descending, not divided by the number
    of records. For a mixture the variance of its noise is already subtracted. ``noise_variance`` is this variance: of
    the noise around the means, in each coordinate of one record. It was declared or follows from the release.
    """

    components: NDArray[np.float64]
    weights: NDArray[np.float64]
    model: ComponentModel
    noise_variance: float | None = None
    eigenvalues: NDArray[np.float64]
    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """The result of an evaluation.

    ``sums`` are the released sums. ``outcome`` holds the estimates computed from them and their standard deviations by
    name, as plain JSON values.
    """

    sums: NDArray[np.float64]
    outcome: Mapping[str, Any]
