r"""Leading eigenpairs of ``S = X^T X`` inside the trust boundary, by block Lanczos on exact products.

A fixed public number of passes over the rows computes exact products ``X^T (X V)``, each with a block V of columns.
Sparse rows remain sparse. The memory is the basis and its image, each of d * passes * width numbers. The result has no
noise, so it must remain as secret as the rows.

>>> from dpca_tasks.records.blocks import ArrayBlocks
>>> from dpca_tasks.noise.keystream import subkey
>>> solver = Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=1)
>>> found = solver.solve(ArrayBlocks(np.eye(3)[[0, 0, 0, 1]]), subkey(bytes(32), label="start", info=b""))
>>> round(found.gap, 2), found
(2.0, Eigenpairs())

Notes
-----
*Exactness.* Records are clipped and rounded to integers. The entries of V are multiples of ``2^-36``. If a mean is
subtracted, they are multiples of ``2^-20``, so that products with the mean are exact. Products are summed as integers,
so they have the same bits for any blocks, partitions and workers. A small amount of fresh keyed noise is added to every
block before orthogonalisation, so the basis reaches the planned number of columns for any rank of S. LAPACK runs on one
thread. With the locked versions of libraries, a key gives the same bits on one machine.

*What the residual certifies.* The Rayleigh-Ritz method on the basis gives k + 1 pairs with the residual
``R = S V - V Lambda``. Then V spans an invariant subspace of a matrix ``S + E`` with ``||E||_2 = ||R||_2``. Suppose
that the pairs approximate the leading eigenpairs and that ``||R||_F <= TOLERANCE``. Then each computed eigenvalue
differs from the exact one by at most `TOLERANCE`. Let g be the exact eigengap, and ``g_ritz`` the computed one. The
returned ``gap = g_ritz - 2 TOLERANCE`` is between ``g - 4 TOLERANCE`` and g. A larger residual certifies nothing, and
the returned gap is then 0. A gap of 0 means the most noise for `SmoothNoise`, and a failed test for `ProposedGap`.

*When the guarantee is unconditional.* If ``passes * width >= d``, the basis spans all of R^d, and the method is a full
eigendecomposition. The pairs are then the leading ones, and the residual is a rounding error of about ``1e-16 d`` times
the largest eigenvalue. This is below the tolerance for any number of records that exact sums can add. The width is
chosen so that this holds for up to `COMPLETE_UP_TO` features.

*What is not proved.* With more features, the number of passes may be too small for a dataset. No fixed number excludes
this, because a Krylov method needs d products in the worst case. The proof then covers only neighbouring datasets whose
residuals are both within the tolerance, or both beyond it. If both are within the tolerance, the bounds hold, provided
that the random start misses no leading direction. The start is unknown to anyone who chooses the rows. If both are
beyond the tolerance, both get the worst-case noise, which hides any two subspaces. The proof does not cover neighbours
of which only one is within the tolerance. With more passes, this happens only at smaller relative eigengaps.
`is_complete` states from public facts alone whether the guarantee is unconditional.

References
----------
Golub and Underwood (1977), The block Lanczos method; Parlett (1998), chapters 10, 11 and 13.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dpca_tasks.accounting.events import Event, Relation
from dpca_tasks.accounting.smooth_sensitivity import TOLERANCE, gap_movement
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.keystream import SecretKey, normals
from dpca_tasks.queries.operator_product import BITS, EIGENSOLVER_DIRECTION_BITS, ExactProduct, on_direction_grid
from dpca_tasks.queries.recentred_moment import relation_around
from dpca_tasks.records.blocks import RECORDS_VERSION, BlockSource
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import Residency
from dpca_tasks.threads import one_thread

if TYPE_CHECKING:
    from distributed import Client

COMPLETE_UP_TO = 4096
"""The largest number of features for which the basis is made to span the whole space R^d."""

_TRACE = 2.0**-EIGENSOLVER_DIRECTION_BITS
_FACTS = ("n_features", "clip_norm", "relation", "n_components", "passes", "oversampling")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenpairs:
    """Secret: the exact leading directions, of shape (d, k), and a lower bound on the eigengap after them.

    The bound ``gap`` is in records at the clip norm, and 0 if nothing is certified.
    """

    directions: NDArray[np.float64] = field(repr=False)
    gap: float = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigensolver:
    """An eigensolver for the leading k directions of clipped records, and for a lower bound on the eigengap.

    Parameters
    ----------
    n_features, clip_norm, relation
        The number of features, the clip norm of records and the neighboring relation, as for a query.
    n_components : int
        The number k of directions; k + 1 eigenpairs are computed.
    passes : int
        The largest number of passes over the rows; it is public and does not depend on the data.
    oversampling : int
        The number of columns of a block beyond k + 1.
    shift : int64 array of shape (n_features,), optional
        A public mean that is subtracted from the records, on the grid of
        `dpca_tasks.queries.recentred_moment.ShiftedMoment`.
    """

    n_features: int
    clip_norm: float
    relation: Relation
    n_components: int
    passes: int = 24
    oversampling: int = 8
    shift: NDArray[np.int64] | None = field(default=None, repr=False)

    name: ClassVar[str] = "Eigensolver"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Refuse invalid public parameters."""
        self._query(np.zeros((self.n_features, 1), np.int64))
        if self.passes < 1 or self.oversampling < 0:
            raise InvalidInput(
                f"passes={self.passes} must be at least 1, oversampling={self.oversampling} at least 0; correct them."
            )

    @property
    def kind(self) -> str:
        """The key in `dpca_tasks.privacy.request.TABLE`: name, version, and whether a mean is subtracted."""
        return f"{self.name} {self.version}" + (" around a mean" if self.shift is not None else "")

    def sensitivity(self, norm: Literal["eigengap"]) -> float:
        """Return a bound on the change of the exact eigengap by one record, in records at the clip norm."""
        return gap_movement(self.effective_relation)

    @property
    def layout(self) -> Layout:
        """The layout of the answer: the matrix of directions as a vector, row by row."""
        return Layout(kind="vector", order=self.n_features * self.n_components)

    @property
    def width(self) -> int:
        """The number of columns of a block."""
        complete = -(-self.n_features // self.passes) if self.n_features <= COMPLETE_UP_TO else 0
        return min(self.n_features, max(self.n_components + 1 + self.oversampling, complete))

    @property
    def is_complete(self) -> bool:
        """True if the basis spans all of R^d, so that the eigenpairs are correct for every dataset."""
        return self.width * self.passes >= self.n_features

    @property
    def effective_relation(self) -> Relation:
        """The neighboring relation whose sensitivity bounds apply to S.

        It is the requested relation, except that with a subtracted mean an emptied record counts as a replaced record.
        """
        return self.relation if self.shift is None else relation_around(self.relation)

    def event_of(self, noise: Event) -> Event:
        """Return the privacy event of a noised answer, which is the event of the mechanism that adds the noise."""
        return noise

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the public arrays that determine the computation: the subtracted mean, if any."""
        return {} if self.shift is None else {"shift": self.shift}

    def with_inputs(self, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the computation with another subtracted mean, given as by `public_inputs`."""
        return replace(self, shift=arrays.get("shift"))

    def digest(self) -> bytes:
        """Hash everything that determines the eigenpairs, except the rows and the key of the random start."""
        facts = ", ".join(f"{name}={getattr(self, name)!r}" for name in _FACTS)
        text = f"eigensolver {self.version} {RECORDS_VERSION} {self.name}({facts})"
        return hashlib.sha256(text.encode() + (b"" if self.shift is None else self.shift.tobytes())).digest()

    def solve(
        self,
        source: BlockSource,
        key: SecretKey,
        *,
        client: "Client | None" = None,
        progress: Callable[[int, int], None] | None = None,
        residency: Residency | None = None,
    ) -> Eigenpairs:
        """Compute the eigenpairs of the records of ``source``, from a random start drawn with ``key``."""
        d, columns = self.n_features, min(self.n_features, self.width * self.passes)
        fresh = normals(key, start=0, stop=d * columns).reshape(columns, d).T
        basis, images = np.empty((d, columns)), np.empty((d, columns))
        block = fresh[:, : self.width]
        with one_thread():
            for first in range(0, columns, self.width):
                here = slice(first, min(first + self.width, columns))
                block = _orthonormal(block[:, : here.stop - first], basis[:, :first])
                gridded = on_direction_grid(block, shifted=self.shift is not None)
                basis[:, here] = gridded / 2.0**EIGENSOLVER_DIRECTION_BITS
                query = self._query(gridded)
                total = exact_sum(source, query, client=client, progress=progress, residency=residency)
                images[:, here] = query.product(total)
                new = _without(basis[:, : here.stop], images[:, here])
                block = new / max(float(np.linalg.norm(new)), 1.0) + _TRACE * fresh[:, here]
            return self._pairs(basis, images)

    def _query(self, directions: NDArray[np.int64]) -> ExactProduct:
        return ExactProduct(
            n_features=self.n_features,
            clip_norm=self.clip_norm,
            relation=self.relation,
            bits=BITS,
            directions=directions,
            shift=self.shift,
        )

    def _pairs(self, basis: NDArray[np.float64], images: NDArray[np.float64]) -> Eigenpairs:
        """Compute the leading Ritz pairs of S from a basis V and its image ``S V``.

        The basis is orthonormal only up to rounding to its grid.
        """
        orthonormal, triangle = np.linalg.qr(basis)
        images = solve_triangular(triangle, images.T, trans="T").T
        small = orthonormal.T @ images
        # compute all eigenpairs, because a solver for only some of them may miss repeated eigenvalues
        values, vectors = np.linalg.eigh((small + small.T) / 2)
        values, vectors = values[-self.n_components - 1 :], vectors[:, -self.n_components - 1 :]
        pairs = orthonormal @ vectors
        residual = float(np.linalg.norm(images @ vectors - pairs * values))
        gap = max(float(values[1] - values[0]) - 2.0 * TOLERANCE, 0.0) if residual <= TOLERANCE else 0.0
        return Eigenpairs(directions=np.ascontiguousarray(pairs[:, :0:-1]), gap=gap)


def _orthonormal(block: NDArray[np.float64], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orthonormalise the columns of a block against an orthonormal basis.

    The step is repeated, because rounding matters for columns that are nearly in the span of the basis.
    """
    for _ in range(2):
        block, _ = np.linalg.qr(_without(basis, block))
    return block


def _without(basis: NDArray[np.float64], block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Project a block onto the orthogonal complement of a basis, twice to remove rounding errors."""
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
    return block
