"""What every mechanism is given, and what it plans.

A mechanism is one frozen class: its fields are its parameters, `plan` turns public facts into noise scales
and a privacy event, and `run` asks the curator for the planned steps and finishes with post-processing.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from threadpoolctl import ThreadpoolController

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.events import Event
from dpca_tasks.queries.base import Relation

Calibration = Literal["tight", "paper"]
Center = Literal["none", "private"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The public facts of a request.

    Parameters
    ----------
    n_features : int
        Declared columns d.
    clip_norm : float, data units
        Bound on a record's norm.
    relation : {"add_remove", "zero_out", "replace_one"}
    records_at_most : int
        Public bound n_ref on the number of records; it scales public choices and guards delta, nothing else.
    center : {"none", "private"}
        Whether components are those of the rows around their mean; the mean is then released too.
    """

    n_features: int
    clip_norm: float
    relation: Relation = "add_remove"
    records_at_most: int = 100_000
    center: Center = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyTarget:
    """The guarantee asked for: (epsilon, delta) in the problem's relation."""

    epsilon: float
    delta: float
    allow_large_delta: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a mechanism will spend: public, computed before any row is read.

    ``noise_multiplier`` is the noise's scale over the sensitivity in each main step; ``bits`` the records' grid;
    ``warnings`` say in public terms what limits the utility. ``real_epsilon`` is what the noise of a published
    formula really gives at the target's delta; None where noise is calibrated to the target itself.
    """

    mechanism: str
    problem: Problem
    target: PrivacyTarget
    noise_multiplier: float
    bits: int
    event: Event
    warnings: tuple[str, ...] = ()
    real_epsilon: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subspace:
    """The result of a subspace mechanism.

    ``components`` has shape (k, d) and orthonormal rows; ``eigenvalues`` (k,) and ``spectrum`` (at least the
    same values, then smaller ones) belong to the noisy X^T X, in data units squared, not divided by n.

    The rest is there when it was released: ``further`` (m - k, d), the directions of the next eigenvalues of
    ``spectrum``, so that other k are free; ``total_variance``, the noisy trace, where it is positive; ``mean`` (d,),
    around which the components were taken; ``clip_norm``, where it was chosen privately.
    """

    components: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    spectrum: NDArray[np.float64]
    further: NDArray[np.float64] | None = None
    total_variance: float | None = None
    mean: NDArray[np.float64] | None = None
    clip_norm: float | None = None


class SubspaceMechanism(Protocol):
    """The one shape of all subspace mechanisms."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def n_components(self) -> int: ...  # noqa: D102

    def plan(self, problem: Problem, target: PrivacyTarget) -> Plan:
        """Turn public facts into noise and an event."""

    def run(self, curator: Curator, plan: Plan) -> Subspace:
        """Ask for the planned steps, then post-process."""


def check_request(
    problem: Problem, target: PrivacyTarget, *, n_components: int, pure: bool = False, centers: bool = False
) -> None:
    """Refuse what no mechanism, or not this one, can grant.

    Parameters
    ----------
    problem, target, n_components
        The request.
    pure : bool
        Whether the mechanism is pure, so that delta may be 0.
    centers : bool
        Whether it can center privately.

    Raises
    ------
    InvalidInput
        When a number is outside its domain.
    Refused
        When delta is not below ``1 / records_at_most``: publishing that share of raw rows would meet such a
        delta.
    """
    if not 1 <= n_components < problem.n_features:
        raise InvalidInput(
            f"n_components={n_components} must be at least 1 and below n_features={problem.n_features}; ask for fewer."
        )
    if not (math.isfinite(target.epsilon) and target.epsilon > 0):
        raise InvalidInput(f"epsilon={target.epsilon!r} must be positive and finite; 0.1 to 10 is usual.")
    if not (0 < target.delta < 1 or (pure and target.delta == 0)):
        raise InvalidInput(
            f"delta={target.delta!r} must lie strictly between 0 and 1; 1e-6 is usual (0 for laplace and wishart)."
        )
    if problem.center != "none" and not centers:
        raise Refused(f"center={problem.center} is not offered by this mechanism; use center=none, or analyze_gauss.")
    if problem.records_at_most < 1:
        raise InvalidInput(f"records_at_most={problem.records_at_most} must be at least 1; state a public bound.")
    if not target.allow_large_delta and target.delta * problem.records_at_most >= 1:
        raise Refused(
            f"delta={target.delta!r} is not below 1/records_at_most={1 / problem.records_at_most:.3g}; "
            "ask for a smaller delta, or insist with --allow-large-delta."
        )


def grid_warnings(problem: Problem, *, bits: int) -> tuple[str, ...]:
    """Say when the grid may swallow small entries of wide records."""
    if 2**bits >= 8 * math.sqrt(problem.n_features):
        return ()
    return (
        f"the grid has 2^{bits} steps in a record's norm, fewer than 8 sqrt(n_features): small entries may "
        "vanish; a larger epsilon gives a finer grid.",
    )


def one_thread() -> AbstractContextManager[Any]:
    """Hold linear algebra to one thread, so that the same matrix gives the same bits on any number of cores."""
    limits: AbstractContextManager[Any] = _linear_algebra().limit(limits=1)
    return limits


@cache
def _linear_algebra() -> ThreadpoolController:
    return ThreadpoolController()  # finding the libraries takes longer than most of what is done on one thread


def leading_eigenpairs(matrix: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ``count`` algebraically largest eigenvalues, descending, and signed eigenvectors as rows.

    LAPACK runs on one thread, so that the same matrix gives the same bits.
    """
    order = matrix.shape[0]
    with one_thread():
        values, vectors = eigh(matrix, subset_by_index=(order - count, order - 1), driver="evr")
    return values[::-1].copy(), signed(vectors.T[::-1])


def signed(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Flip each row so that its entry of largest magnitude is positive."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    return np.ascontiguousarray(rows * np.where(largest < 0, -1.0, 1.0))
