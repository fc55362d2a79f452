"""The results of mechanisms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ComponentModel = Literal["topics", "mixture"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subspace:
    """The result of a subspace mechanism.

    ``components`` has shape (k, d) and orthonormal rows.

    The other fields are None unless released: ``eigenvalues`` (k,) and ``spectrum`` (the same values, then smaller
    ones) of the noisy X^T X, in data units squared, not divided by n; ``further`` (m - k, d), the directions of the
    next eigenvalues of ``spectrum``, so that another k costs nothing; ``total_variance``, the noisy trace, if positive;
    ``mean`` (d,), around which the components were computed; ``clip_norm``, if it was chosen privately; ``outcome``,
    public facts that the release itself decided, as plain JSON values.

    Of one noisy symmetric matrix there are besides: ``released``, the matrix as it left the curator, where it was
    formed (of extended rows where there is a ``mean``); and ``noise``, what is public about its noise: ``law``, ``std``
    off the diagonal, ``step`` of the grid, and ``constant``, which extends the rows. ``all_eigenvalues`` (d,) are those
    of the formed matrix, around the mean if there is one.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemFactors:
    """The result of a completion mechanism; nothing in it belongs to a user.

    ``factors`` has shape (m, r), None for offsets alone; ``offsets`` (m,) are taken off the ratings of items;
    ``counts`` (m,), if released, are noisy numbers of counted ratings. ``user_step`` holds the public numbers with
    which a user computes a factor and an offset: ``centre``, ``prior`` (None: no own mean), and with factors ``ridge``,
    ``rating_bound`` and perhaps ``unobserved``; or, where factors are directions of a descent, its ``gains`` and
    ``row_norm`` in place of a ridge.
    """

    factors: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64]
    counts: NDArray[np.float64] | None = None
    user_step: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Components:
    """The result of a tensor mechanism: the components of a model of records, by falling weight.

    ``components`` has shape (K, D): of ``topics`` the probabilities of words, which sum to 1; of a ``mixture`` the
    means of its parts, in data units. ``weights`` (K,) are positive and sum to 1: the share of records of each. There
    may be fewer of them than were asked for, even none; ``outcome`` says so, as plain JSON values.

    ``eigenvalues`` (K',) are those of the released second moment that were kept, descending, not divided by the number
    of records; of a mixture without ``noise_variance``, that of the noise around its means in each coordinate of one
    record, which was declared or follows from the release.
    """

    components: NDArray[np.float64]
    weights: NDArray[np.float64]
    model: ComponentModel
    noise_variance: float | None = None
    eigenvalues: NDArray[np.float64]
    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """The result of an evaluation: ``sums``, as they were released, and the ``outcome`` that follows from them.

    ``outcome`` holds estimates and their standard deviations by name, as plain JSON values.
    """

    sums: NDArray[np.float64]
    outcome: Mapping[str, Any]
