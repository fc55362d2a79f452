r"""Leading eigenpairs of ``S = X^T X`` inside the trust boundary, by block Lanczos on exact products.

A fixed public number of passes over the blocks computes exact products ``X^T (X V)`` with a block of columns. Sparse
rows stay sparse, and memory holds the basis and its image, (d, passes * width) numbers each. The result is as private
as the rows.

>>> from dpca_tasks.records.blocks import ArrayBlocks
>>> from dpca_tasks.noise.keystream import subkey
>>> solver = Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=1)
>>> found = solver.solve(ArrayBlocks(np.eye(3)[[0, 0, 0, 1]]), subkey(bytes(32), label="start", info=b""))
>>> round(found.gap, 2), found
(2.0, Eigenpairs())

Notes
-----
*Exactness.* Records are clipped integers. V is on a grid of step ``2^-36``. Around a mean the step is ``2^-20``, which
keeps products with the mean exact. Products are summed as integers, so the images of the basis have the same bits for
any blocks, partitions and workers. The basis is completed by orthogonalisation. Every block contains a trace of fresh
keyed noise, so the basis reaches the planned number of columns whatever the rank of S. LAPACK runs on one thread: with
the locked versions, a key gives the same bits on one machine.

*What is certified.* Rayleigh-Ritz on the span gives k + 1 pairs with residual ``R = S V - V Lambda``. Then V spans an
invariant subspace of ``S + E`` with ``||E||_2 = ||R||_2``. Suppose that the pairs are the leading ones and
``||R||_F <= TOLERANCE``. Then each computed eigenvalue is within `TOLERANCE` of the exact one, and
``gap = g_ritz - 2 TOLERANCE`` lies between ``g - 4 TOLERANCE`` and g. A larger residual certifies nothing, and the gap
then counts as 0: the worst case for smooth noise, and a failed test for `ProposedGap`.

*When that is a proof.* With ``passes * width >= d`` the basis is all of R^d and Rayleigh-Ritz is a full
eigendecomposition. The pairs are the leading ones, and the residual is rounding error, about ``1e-16 d`` of the largest
eigenvalue. That is below the tolerance for any number of records that exact sums can hold. The width ensures this for
up to `COMPLETE_UP_TO` features, and the guarantee then has no condition.

*What is not proved.* For more features the number of passes may be too small for a dataset. No fixed number excludes
this: in the worst case a Krylov method needs d products. The proof then covers neighbours whose residuals both pass or
both fail the tolerance. If both pass, the bounds hold, provided that the random start misses no leading direction; it
is unknown to anyone who chose the rows. If both fail, both get the worst-case noise, which hides any two subspaces. The
proof does not cover neighbours of which one passes and one fails. More passes move that boundary to smaller relative
eigengaps. `is_complete` reports the case from public facts alone.

References
----------
Golub and Underwood (1977), The block Lanczos method; Parlett (1998), chapters 10, 11 and 13.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
"""Largest number of features for which the basis is made complete."""

_TRACE = 2.0**-EIGENSOLVER_DIRECTION_BITS
_FACTS = ("n_features", "clip_norm", "relation", "n_components", "passes", "oversampling")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenpairs:
    """Leading directions (d, k) and a certified lower bound of the eigengap, in records of norm 1. Secret."""

    directions: NDArray[np.float64] = field(repr=False)
    gap: float = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigensolver:
    """Compute the leading k directions of clipped records, and the eigengap after them.

    Parameters
    ----------
    n_features, clip_norm, relation
        As for a query.
    n_components : int
        k; k + 1 pairs are computed.
    passes : int
        The largest number of passes over the rows; public, independent of the data.
    oversampling : int
        Columns of a block beyond k + 1.
    shift : int64 array of shape (n_features,), optional
        A public mean to subtract, as for `dpca_tasks.queries.recentred_moment.ShiftedMoment`.
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
        """Check the public parameters."""
        self._query(np.zeros((self.n_features, 1), np.int64))
        if self.passes < 1 or self.oversampling < 0:
            raise InvalidInput(f"passes={self.passes} must be at least 1, oversampling={self.oversampling} at least 0.")

    @property
    def kind(self) -> str:
        """The key in `dpca_tasks.privacy.request.TABLE`: name, version, and whether a mean is subtracted."""
        return f"{self.name} {self.version}" + (" around a mean" if self.shift is not None else "")

    def sensitivity(self, norm: Literal["eigengap"]) -> float:
        """Bound the change of the eigengap by one record, in records of norm 1."""
        return gap_movement(self.effective_relation)

    @property
    def layout(self) -> Layout:
        """The directions as a vector, row by row."""
        return Layout(kind="vector", order=self.n_features * self.n_components)

    @property
    def width(self) -> int:
        """Columns of a block."""
        complete = -(-self.n_features // self.passes) if self.n_features <= COMPLETE_UP_TO else 0
        return min(self.n_features, max(self.n_components + 1 + self.oversampling, complete))

    @property
    def is_complete(self) -> bool:
        """True if the basis spans R^d, so that the pairs are correct for every dataset."""
        return self.width * self.passes >= self.n_features

    @property
    def effective_relation(self) -> Relation:
        """The relation whose bounds hold for S: around a mean, an emptied record counts as a replaced one."""
        return self.relation if self.shift is None else relation_around(self.relation)

    def event_of(self, noise: Event) -> Event:
        """Return the event of an answer, which is the event of its mechanism."""
        return noise

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the mean, if there is one."""
        return {} if self.shift is None else {"shift": self.shift}

    def digest(self) -> bytes:
        """Hash everything that determines the pairs except the rows and the key."""
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
        """Compute the pairs. Normal variates of the key start the basis."""
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
        """Compute the leading Ritz pairs of a basis that is orthonormal up to its grid."""
        orthonormal, triangle = np.linalg.qr(basis)
        images = solve_triangular(triangle, images.T, trans="T").T
        small = orthonormal.T @ images
        values, vectors = np.linalg.eigh((small + small.T) / 2)  # partial solvers may miss repeated eigenvalues
        values, vectors = values[-self.n_components - 1 :], vectors[:, -self.n_components - 1 :]
        pairs = orthonormal @ vectors
        residual = float(np.linalg.norm(images @ vectors - pairs * values))
        gap = max(float(values[1] - values[0]) - 2.0 * TOLERANCE, 0.0) if residual <= TOLERANCE else 0.0
        return Eigenpairs(directions=np.ascontiguousarray(pairs[:, :0:-1]), gap=gap)


def _orthonormal(block: NDArray[np.float64], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orthonormalise a block against a basis, twice, for columns that nearly cancel."""
    for _ in range(2):
        block, _ = np.linalg.qr(_without(basis, block))
    return block


def _without(basis: NDArray[np.float64], block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Project a block onto the complement of orthonormal columns, twice against rounding."""
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
    return block
