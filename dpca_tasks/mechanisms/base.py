"""The interface of all mechanisms.

This module defines the public facts of a request, the privacy target, the plan of a release, and the results.

A mechanism is one frozen class, whose fields are its parameters. Its `plan` turns public facts into noise scales and a
privacy event. Its `run` requests the planned noisy answers from the curator, which alone reads rows, and post-processes
the answers.
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
    """Public facts of a request, common to all families of mechanisms.

    Parameters
    ----------
    relation : {"add_remove", "zero_out", "replace_one"}
        The neighboring relation of the privacy guarantee.
    records_at_most : int
        Public bound n on the number of records. Delta must be below ``1 / n``. Mechanisms also use n for public
        choices, such as the number of rounds, and for forecasts.
    records_declared : bool
        Whether the user declared ``records_at_most``. If not, it is a default value, which may be wrong.
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
        The declared number d of columns.
    clip_norm : float, data units
        The bound on the norm of each record; larger records are scaled down to this norm.
    center : {"none", "private"}
        With "private", the mean of the rows is released too, and components are computed around the mean.
    spectrum : str
        The spectrum that the user declares (`dpca_tasks.forecast.noise_forecast`), or an empty string. The spectrum is
        used only for forecasts: no noise depends on it.
    **others
        As for `Terms`.
    """

    n_features: int
    clip_norm: float
    center: Center = "none"
    spectrum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyTarget:
    """The requested guarantee: (epsilon, delta) under the neighboring relation of the problem.

    ``allow_large_delta`` accepts a delta that is not below one over the number of records.
    ``i_know_this_is_not_private`` accepts a result without any guarantee; private mechanisms ignore it.
    """

    epsilon: float
    delta: float
    allow_large_delta: bool = False
    i_know_this_is_not_private: bool = False


LARGE = 1_000
"""The least order of a matrix whose eigenpairs are computed in two threads.

Two threads are 1.6 times as fast as one at order 2,000, but hardly faster below order 1,000.
"""

NO_GUARANTEE = PrivacyTarget(epsilon=math.inf, delta=0.0, i_know_this_is_not_private=True)
"""The privacy target of a result without any guarantee, which the user has accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The public plan of a release, computed before any row is read.

    ``problem`` holds the public facts of the request, as the subclass of `Terms` for the family of mechanisms.
    ``noise_multiplier`` is the scale of the noise divided by the sensitivity, for each main noisy answer. ``bits`` sets
    the grid to which records are rounded: with one more bit, the grid step is half as large. ``notes`` are warnings
    about limited utility, computed from public facts.

    ``event`` is the DP event of all noisy answers, including those that a wrapper of the mechanism adds. The charge of
    a release and every reported epsilon are computed from this event. ``printed`` is true if the noise follows a
    published formula and is not calibrated to the target. ``uncertified`` is true if no proof shows that the mechanism
    satisfies ``event``.

    ``noise_edge`` is the bound that eigenvalues of noise alone do not exceed, in squared clip norms
    (`dpca_tasks.mechanisms.noise_level`). It is None if no eigenvalues are released. If one noisy symmetric matrix is
    released, ``moment_noise`` names the law of its noise, and ``moment_std`` is the std of the off-diagonal noise
    entries, in squared clip norms. ``moment_formed`` is false if the matrix is used only through products and never
    computed entry by entry.

    A warm start multiplies records by a map (a matrix) from an earlier release. ``start`` describes this release: its
    ``artifact`` (name and version), its ``digest``, and the ``mean_square`` of its records, in data units squared. It
    is None without a warm start.

    The strength of a component is its eigenvalue of X^T X, in squared clip norms. ``level`` is the least strength that
    can be distinguished from the noise; it is None in plans of non-private references. ``together`` is true if the
    mechanism finds either all k components or none. Then ``level`` is compared with the difference between the
    strengths of components k and k + 1.
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
    start: Mapping[str, Any] | None = None
    level: float | None = None
    together: bool = False

    @property
    def epsilon_at_most(self) -> float:
        """An upper bound on the epsilon of ``event`` at the target's delta; 0 if the event is (0, delta)-DP."""
        found = epsilon_of_event(self.event, delta=self.target.delta, relation=self.problem.relation)
        return found if self.printed or self.uncertified else min(found, self.target.epsilon)

    @property
    def real_epsilon(self) -> float | None:
        """`epsilon_at_most` if the noise follows a published formula; None if the noise is calibrated to the target."""
        return self.epsilon_at_most if self.printed else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes of the plan, preceded by a warning if noise by a published formula is far from the target.

        The warning appears if the true epsilon of this noise is above the target's epsilon, or at most a tenth of the
        target's epsilon.
        """
        real, requested = self.real_epsilon, self.target.epsilon
        if real is None or requested / 10 < real <= requested:
            return self.notes
        if real > requested:
            gives = (
                f"epsilon {real:.4g}, which is charged instead of the requested {requested:g}; use calibration=tight"
            )
        else:
            known = f"at most epsilon {real:.4g}" if real else f"epsilon 0 at delta={self.target.delta:g}"
            gives = f"{known}; calibration=tight meets {requested:g} with far less noise"
        return (f"calibration=paper: the noise by the published formula really gives {gives}.", *self.notes)

    @property
    def certified(self) -> bool:
        """True if the plan provably meets its target.

        This is false if the event has no proof, or if noise by a published formula has a true epsilon above the target.
        """
        return not self.uncertified and (not self.printed or self.epsilon_at_most <= self.target.epsilon)


class Mechanism[T](Protocol):
    """The interface of all mechanisms; T is the type of the result (see `dpca_tasks.mechanisms.base`)."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def plan(self, problem: Any, target: PrivacyTarget) -> Plan:
        """Compute the noise and the privacy event of a release from public facts.

        ``problem`` holds the facts of the request, as the subclass of `Terms` for the mechanism's family.
        """

    def run(self, curator: Curator, plan: Plan) -> T:
        """Release the planned noisy answers, then post-process them."""


def check_request(problem: Problem, target: PrivacyTarget, *, n_components: int, pure: bool = False) -> None:
    """Raise an error if a request for a subspace is invalid; see `check_shape` and `check_target`."""
    check_shape(problem, n_components=n_components)
    check_target(problem, target, pure=pure)


def check_target(problem: Terms, target: PrivacyTarget, *, pure: bool = False) -> None:
    """Refuse an invalid privacy target.

    Parameters
    ----------
    problem, target
        The public facts and the privacy target of the request.
    pure : bool
        Whether the mechanism offers pure epsilon-DP, so that delta may be 0.

    Raises
    ------
    InvalidInput
        When epsilon, delta or ``records_at_most`` is outside its domain.
    Refused
        When delta is not below ``1 / records_at_most``, and the target does not set ``allow_large_delta``. A mechanism
        that publishes each raw row with probability delta would satisfy such a guarantee.
    """
    if problem.records_at_most < 1:
        raise InvalidInput(f"records_at_most={problem.records_at_most} must be at least 1; state a public bound.")
    if not (math.isfinite(target.epsilon) and target.epsilon > 0):
        raise InvalidInput(f"epsilon={target.epsilon!r} must be positive and finite; 0.1 to 10 is usual.")
    if not (0 < target.delta < 1 or (pure and target.delta == 0)):
        raise InvalidInput(
            f"delta={target.delta!r} must lie strictly between 0 and 1; 1e-6 is usual (0 is allowed for mechanisms "
            "with pure epsilon-DP, such as wishart)."
        )
    if not target.allow_large_delta and target.delta * problem.records_at_most >= 1:
        raise Refused(
            f"delta={target.delta!r} is not below 1/records_at_most={1 / problem.records_at_most:.3g}; use a smaller "
            "delta, declare records_at_most if it is smaller, or insist with --allow-large-delta."
        )


def check_shape(problem: Problem, *, n_components: int) -> None:
    """Refuse an invalid number of components, or an invalid bound on the number of records.

    Raises
    ------
    InvalidInput
        When ``n_components`` is not from 1 to ``n_features - 1``, or ``records_at_most`` is below 1.
    """
    if not 1 <= n_components < problem.n_features:
        raise InvalidInput(
            f"n_components={n_components} must be at least 1 and below n_features={problem.n_features}; correct it."
        )
    if problem.records_at_most < 1:
        raise InvalidInput(f"records_at_most={problem.records_at_most} must be at least 1; state a public bound.")


def grid_warnings(problem: Problem, *, bits: int) -> tuple[str, ...]:
    """Return a warning if rounding of records to a grid may set small entries to zero, else an empty tuple.

    The grid has ``2^bits`` steps per clip norm.
    """
    if 2**bits >= 8 * math.sqrt(problem.n_features):
        return ()
    return (
        f"records are rounded to a grid of 2^{bits} steps per clip norm, fewer than 8 sqrt(n_features), so small "
        "entries may become 0; a larger epsilon gives a finer grid.",
    )


ComponentModel = Literal["topics", "mixture"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subspace:
    """The result of a subspace mechanism.

    ``components`` has shape (k, d) and orthonormal rows.

    The other fields are None unless released:

    - ``eigenvalues`` (k,), the k largest eigenvalues of the noisy second moment X^T X, in data units squared, not
      divided by n;
    - ``spectrum`` (m,), the m largest eigenvalues of the same matrix, where m is at least k;
    - ``further`` (m - k, d), the eigenvectors of the eigenvalues after the k-th in ``spectrum``; with them, a result
      with more components needs no new release;
    - ``total_variance``, the trace of the noisy second moment, if positive;
    - ``mean`` (d,), the released mean around which the components were computed;
    - ``clip_norm``, if the release chose the clip norm privately;
    - ``outcome``, public facts that are known only after the release, as plain JSON values.

    A release of one noisy symmetric matrix has further fields:

    - ``released``, the noisy matrix exactly as the curator returned it; if there is a ``mean``, this is the second
      moment of rows to which a public constant was appended;
    - ``noise``, the public facts about the matrix's noise: ``law``, ``std`` off the diagonal, ``step`` of the grid, and
      the ``constant`` that was appended to the rows;
    - ``all_eigenvalues`` (d,), all eigenvalues of the noisy second moment, around the mean if there is one.

    A release in several rounds has ``rounds`` instead of ``released`` and ``noise``: the answers of all rounds, as
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

    ``factors`` has shape (m, r): one factor of rank r for each of m items. It is None if only offsets are released.
    ``offsets`` (m,) are subtracted from the ratings of the items. ``counts`` (m,), if released, are the noisy numbers
    of counted ratings of the items.

    ``user_step`` holds the public numbers with which a user computes the user's own factor and offset:

    - ``centre``, the average rating;
    - ``prior``, the number of fictitious ratings, equal to the centre, that are added to a user's mean. It is None if a
      user's mean is not subtracted;
    - with factors also ``ridge``, ``rating_bound`` and, for some mechanisms, ``unobserved``;
    - if the factors are the directions of a Frank-Wolfe descent, ``gains`` and ``row_norm`` in place of ``ridge``.
    """

    factors: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64]
    counts: NDArray[np.float64] | None = None
    user_step: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Components:
    """The result of a tensor mechanism: the components of a topic model or of a mixture, in order of falling weight.

    ``components`` has shape (K, D). For ``topics``, each row holds the probabilities of words, which sum to 1. For a
    ``mixture``, each row is the mean of one part of the mixture, in data units. ``weights`` (K,) are the estimated
    shares of records that belong to each component; they are positive and sum to 1. There may be fewer components than
    requested, or none. ``outcome`` states how many were requested and how many were found, as plain JSON values.

    ``noise_variance`` exists for a mixture: the variance of a record around the mean of its part, in each coordinate.
    It was declared by the user or estimated from the release. ``eigenvalues`` (K',) are the leading eigenvalues of the
    released second moment, descending, not divided by the number of records. For a mixture, the contribution of
    ``noise_variance`` is already subtracted.
    """

    components: NDArray[np.float64]
    weights: NDArray[np.float64]
    model: ComponentModel
    noise_variance: float | None = None
    eigenvalues: NDArray[np.float64]
    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """The result of a private evaluation.

    ``sums`` are the released noisy sums. ``outcome`` holds the estimates computed from the sums, and the standard
    deviations of the estimates, by name and as plain JSON values.
    """

    sums: NDArray[np.float64]
    outcome: Mapping[str, Any]
