r"""Leading eigenpairs of ``S = X^T X`` for use inside the trust boundary: block Lanczos on exact products.

A fixed public number of passes over the blocks, each an exact product ``X^T (X V)`` with a block of columns: sparse
rows stay sparse, and memory holds the basis and its image, (d, passes * width) numbers each. What comes out is as
secret as the rows.

>>> from dpca_tasks.records.sources import ArrayBlocks
>>> from dpca_tasks.noise.keystream import subkey
>>> solver = Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=1)
>>> found = solver.solve(ArrayBlocks(np.eye(3)[[0, 0, 0, 1]]), subkey(bytes(32), label="start", info=b""))
>>> round(found.gap, 2), found
(2.0, Eigenpairs())

Notes
-----
*Exactness.* Records are clipped integers, V lies on a grid of step ``2^-36`` (around a mean ``2^-20``, so that what it
is multiplied with stays exact), and products are summed as integers, so the images of the basis are the same bits for
any blocks, partitions and workers. The basis is completed by orthogonalisation, with a trace of fresh keyed noise in
every block, so it grows to the planned number of columns whatever the rank of S. LAPACK runs on one thread: a key gives
the same bits on one machine with one lock.

*What is certified.* Rayleigh-Ritz on the span gives k + 1 pairs with residual ``R = S V - V Lambda``. Then V spans an
invariant subspace of ``S + E`` with ``||E||_2 = ||R||_2``, so if the pairs are the leading ones, each eigenvalue is
within `TOLERANCE` of its own when ``||R||_F <= TOLERANCE``, and ``gap = g_ritz - 2 TOLERANCE`` lies between
``g - 4 TOLERANCE`` and g. A residual above it certifies nothing, and the gap then counts as 0: for smooth noise the
worst case, for a test a failure.

*When that is a proof.* With ``passes * width >= d`` the basis is all of R^d: Rayleigh-Ritz is a full
eigendecomposition, the pairs are the leading ones, and the residual is rounding, about ``1e-16 d`` of the largest
eigenvalue, below the tolerance for any number of records that exact sums hold. Up to `COMPLETE_UP_TO` features the
width is chosen so, and the guarantee has no condition.

*What is left open.* Beyond, the number of passes may be too small for a dataset, which no fixed number excludes: among
all spectra a Krylov method needs d products. Then the proof covers neighbours on which the residual has one verdict. If
both pass, the bounds hold, given that a random start, secret to whoever chose the rows, misses no leading direction; if
neither does, both are the worst case, whose noise hides any two subspaces. One record that turns the verdict is not
covered. More passes move that border to smaller relative eigengaps. `is_complete` says which case it is, from public
facts alone.

References
----------
Golub and Underwood (1977), The block Lanczos method; Parlett (1998), chapters 10, 11 and 13.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dpca_tasks.accounting.events import Event
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.accounting.smooth_sensitivity import TOLERANCE, gap_movement
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.noise.variates import normals
from dpca_tasks.queries.eigensolver_product import BITS, DIRECTION_BITS, ExactProduct, on_direction_grid
from dpca_tasks.queries.recentred_moment import relation_around
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.gridding import RECORDS_VERSION
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.resident_rows import Residency
from dpca_tasks.threads import one_thread

if TYPE_CHECKING:
    from distributed import Client

COMPLETE_UP_TO = 4096
"""Features up to which the basis is made complete."""

_TRACE = 2.0**-DIRECTION_BITS
_FACTS = ("n_features", "clip_norm", "relation", "n_components", "passes", "oversampling")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenpairs:
    """The leading directions (d, k) and a certified lower bound of the eigengap, in records of norm 1. Secret."""

    directions: NDArray[np.float64] = field(repr=False)
    gap: float = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigensolver:
    """Find the leading k directions of clipped records, and the gap behind them.

    Parameters
    ----------
    n_features, clip_norm, relation
        As of a query.
    n_components : int
        k; k + 1 pairs are computed.
    passes : int
        How often the rows are read, at most; public, whatever the data are.
    oversampling : int
        Columns of a block beyond k + 1.
    shift : int64 array of shape (n_features,), optional
        A public mean that is taken off the records, as of `dpca_tasks.queries.recentred_moment.ShiftedMoment`.
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
        """Name and version, and whether a mean is taken off: by which `dpca_tasks.privacy.sensitivities` finds it."""
        return f"{self.name} {self.version}" + (" around a mean" if self.shift is not None else "")

    def sensitivity(self, norm: Literal["eigengap"]) -> float:
        """Bound how far one record moves the eigengap, in records of norm 1."""
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
        """Whether the basis is all of R^d, so that the pairs are found on every dataset."""
        return self.width * self.passes >= self.n_features

    @property
    def effective_relation(self) -> Relation:
        """The relation whose bounds hold of one record's share in S: around a mean an emptied one counts as another."""
        return self.relation if self.shift is None else relation_around(self.relation)

    def event_of(self, noise: Event) -> Event:
        """Return what an answer does whose law has an event: that event."""
        return noise

    def public_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the mean, where there is one."""
        return {} if self.shift is None else {"shift": self.shift}

    def former(self) -> Iterator["Eigensolver"]:
        """Iterate over the forms in which an earlier version asked this: none."""
        return iter(())

    def digest(self) -> bytes:
        """Hash all that determines the pairs but the rows and the key."""
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
        """Compute the pairs. The key's normals start the basis."""
        d, columns = self.n_features, min(self.n_features, self.width * self.passes)
        fresh = normals(key, start=0, stop=d * columns).reshape(columns, d).T
        basis, images = np.empty((d, columns)), np.empty((d, columns))
        block = fresh[:, : self.width]
        with one_thread():
            for first in range(0, columns, self.width):
                here = slice(first, min(first + self.width, columns))
                block = _orthonormal(block[:, : here.stop - first], basis[:, :first])
                gridded = on_direction_grid(block, shifted=self.shift is not None)
                basis[:, here] = gridded / 2.0**DIRECTION_BITS
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
        """Take the leading Ritz pairs of a basis that is orthonormal up to its grid."""
        orthonormal, triangle = np.linalg.qr(basis)
        images = solve_triangular(triangle, images.T, trans="T").T
        small = orthonormal.T @ images
        values, vectors = np.linalg.eigh((small + small.T) / 2)  # all: solvers for a part miss some of many equal ones
        values, vectors = values[-self.n_components - 1 :], vectors[:, -self.n_components - 1 :]
        pairs = orthonormal @ vectors
        residual = float(np.linalg.norm(images @ vectors - pairs * values))
        gap = max(float(values[1] - values[0]) - 2.0 * TOLERANCE, 0.0) if residual <= TOLERANCE else 0.0
        return Eigenpairs(directions=np.ascontiguousarray(pairs[:, :0:-1]), gap=gap)


def _orthonormal(block: NDArray[np.float64], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return orthonormal columns for a block outside the span of a basis: twice, for columns that nearly cancel."""
    for _ in range(2):
        block, _ = np.linalg.qr(_without(basis, block))
    return block


def _without(basis: NDArray[np.float64], block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the span of orthonormal columns off a block."""
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
    return block
