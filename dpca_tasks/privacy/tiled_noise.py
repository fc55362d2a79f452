"""Products with a noise matrix that is too large to form, and with a noisy matrix that is too large to form.

`NoiseOperator` computes exact products of a symmetric noise matrix E with integer directions. E is exactly the matrix
that the noise distribution draws with the same key. The upper triangle of E is divided into panels of rows with about
equal numbers of entries, and a panel into strips that fit in memory. A strip depends only on the key and on the indices
of its rows, so any worker can draw it. If there is memory, strips are kept for the next product; otherwise they are
drawn again. The product has the same bits in both cases, on any number of workers.

BLAS computes the products in float64. Every partial sum is an integer below ``2^53``, hence exact in any order. The
reason is that an entry of E is below ``2^32.02`` in magnitude (a std of at most ``2^28`` steps times 16.1), and that
the magnitudes of 1,024 entries of a column of norm ``2^15.5`` add up to less than ``2^20.5``.

>>> import numpy as np
>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"")
>>> noise = NoiseOperator(Symmetric(noise_multiplier=4.0), key, order=3, scale_in_steps=1000.0)
>>> bool((noise.begin(np.eye(3, dtype=np.int64))() == noise.begin(np.eye(3, dtype=np.int64))().T).all())
True

`NoisedOperator` computes products ``(S + E) V`` of the released noisy matrix, the exact matrix S plus noise E, with any
number of directions V.
"""

import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import StepMismatch
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.queries.operator_product import DIRECTION_BITS, LOW_BITS, UnroundedProduct, as_words, carried
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.sums.partial_sums import settle_homes

if TYPE_CHECKING:
    from distributed import Client, Future


INNER = 1 << 10
"""The number of products that BLAS can add exactly in float64."""
STRIP_ROWS, STRIP_ENTRIES = 1 << 9, 1 << 24
"""The largest numbers of rows and of entries of a strip; so a strip has at most 128 MiB."""
SHARE = 0.3
"""The share of the workers' declared memory that noise may use."""
OWN_MEMORY = 1 << 31
"""The number of bytes that noise may use in this process, without a cluster."""
PANELS_PER_WORKER = 4
FAN_IN = 4
RETRIES = 2


class Strip(NamedTuple):
    """The noise of some consecutive rows of the symmetric noise matrix E.

    ``first`` is the index of the first row, and of the first column of ``noise``. Earlier columns follow by symmetry.
    """

    first: int
    noise: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """The rows ``first <= i < last`` in the upper triangle of the noise matrix E, whose noise is drawn when needed."""

    distribution: Symmetric
    key: SecretKey
    order: int
    scale_in_steps: float
    first: int
    last: int

    def strips(self) -> Iterator[Strip]:
        """Draw the noise of the rows, one strip after the other."""
        step = max(1, min(STRIP_ROWS, STRIP_ENTRIES // self.order))
        for first in range(self.first, self.last, step):
            noise = self.distribution.draw_strip(
                self.key,
                self.order,
                scale_in_steps=self.scale_in_steps,
                first=first,
                last=min(first + step, self.last),
            )
            yield Strip(first, noise)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnPanel:
    """The noise of a panel, kept in memory.

    The repr of this object does not show the noise, because workers log reprs, and known noise reveals the exact sum.
    """

    drawn: tuple[Strip, ...] = field(repr=False)

    def strips(self) -> Iterable[Strip]:
        """Return the strips of noise in memory."""
        return self.drawn

    def __sizeof__(self) -> int:
        """Return the size of the noise in bytes, since Dask would move an object that seems small between workers."""
        return sum(strip.noise.nbytes for strip in self.drawn)


def draw_panel(panel: Panel) -> DrawnPanel:
    """Draw the noise of a panel, and return it for storage in memory."""
    return DrawnPanel(drawn=tuple(panel.strips()))


def multiply(panel: Panel | DrawnPanel, directions: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the contribution of one panel of rows to the product ``E V`` of the symmetric noise matrix E.

    It includes the contribution of the mirrored entries below the diagonal.

    Parameters
    ----------
    panel : Panel or DrawnPanel
        The rows of the upper triangle of E.
    directions : integer array of shape (order, p)
        The columns of V, of norm below ``2^15.5``.
    """
    right = directions.astype(np.float64)
    total = np.zeros(right.shape, np.int64)
    for first, noise in panel.strips():
        last = first + len(noise)
        for start in range(first, len(right), INNER):
            part = noise[:, start - first : start - first + INNER]
            total[first:last] += (part @ right[start : start + INNER]).astype(np.int64)
        total[last:] += (noise[:, last - first :].T @ right[first:last]).astype(np.int64)
    return total


class NoiseOperator:
    """Products of one symmetric noise matrix E with directions, computed in this process or on a cluster.

    Parameters
    ----------
    distribution : Symmetric
        The distribution of the noise.
    key : SecretKey
        The key of the noise, which is used for this matrix only.
    order : int
        The number of rows of E.
    scale_in_steps : float, grid steps
        The scale of the noise, at most ``2^28``.
    client : distributed.Client, optional
        The cluster whose workers draw and keep the noise; None computes in this process.
    """

    def __init__(
        self,
        distribution: Symmetric,
        key: SecretKey,
        *,
        order: int,
        scale_in_steps: float,
        client: "Client | None" = None,
    ) -> None:
        self._client = client
        memory = {} if client is None else _memory_of(client)
        bounds = cut_rows(order, max(1, PANELS_PER_WORKER * len(memory)))
        self._panels = [
            Panel(
                distribution=distribution, key=key, order=order, scale_in_steps=scale_in_steps, first=first, last=last
            )
            for first, last in itertools.pairwise(bounds)
        ]
        self._homes = [at for at in memory for _ in range(PANELS_PER_WORKER)]
        room = SHARE * len(memory) * min(memory.values()) if memory else OWN_MEMORY
        self._keeps = 4 * order * (order + 1) <= room
        self._drawn: list[Any] = []  # panels whose noise is kept in memory; on a cluster, futures of these panels
        self._home_of: dict[str, str] = {}  # the address of the worker for each submitted task

    def begin(self, directions: NDArray[np.integer]) -> Callable[[], NDArray[np.int64]]:
        """Start the computation of ``E V`` on the cluster, and return a function that waits for the product.

        Parameters
        ----------
        directions : integer array of shape (order, p)
            The columns of V, of norm below ``2^15.5``.

        Returns
        -------
        callable
            Returns ``E V`` as an int64 array of shape (order, p), exact.
        """
        if self._client is None:
            return partial(self._here, directions)
        return partial(self._gathered, directions, self._submit_product(directions))

    def _submit_product(self, directions: NDArray[np.integer]) -> list["Future[NDArray[np.int64]]"]:
        assert self._client is not None
        run = uuid.uuid4().hex
        shared = self._client.submit(_itself, directions.astype(np.int32), key=f"directions-{run}", retries=RETRIES)
        if self._keeps and not self._drawn:
            self._drawn = [
                self._submit(draw_panel, at, panel, key=f"panel-{run}-{at}") for at, panel in enumerate(self._panels)
            ]
        level = [
            self._submit(multiply, at, panel, shared, key=f"noise-{run}-{at}")
            for at, panel in enumerate(self._drawn or self._panels)
        ]
        step = 1
        while len(level) > FAN_IN:
            step *= FAN_IN
            level = [
                self._submit(_total, at * step, level[FAN_IN * at : FAN_IN * (at + 1)], key=f"total-{run}-{step}-{at}")
                for at in range(-(-len(level) // FAN_IN))
            ]
        return level

    def _gathered(self, directions: NDArray[np.integer], level: list["Future[NDArray[np.int64]]"]) -> NDArray[np.int64]:
        from dpca_tasks.sums.cluster_sum import gather, resubmitted

        assert self._client is not None
        client = self._client
        levels = itertools.chain([level], (self._submit_anew(directions) for _ in itertools.count()))
        return resubmitted(lambda: _total(gather(client, next(levels), home_of=self._home_of)))

    def _submit_anew(self, directions: NDArray[np.integer]) -> list["Future[NDArray[np.int64]]"]:
        """Submit a product again after a failure; the panels are drawn again, on the workers that are now available."""
        assert self._client is not None
        self._drawn, self._home_of = [], {}
        self._homes = settle_homes(self._homes, [*_memory_of(self._client)])
        return self._submit_product(directions)

    def _here(self, directions: NDArray[np.integer]) -> NDArray[np.int64]:
        if self._keeps and not self._drawn:
            self._drawn = [draw_panel(panel) for panel in self._panels]
        return _total([multiply(panel, directions) for panel in self._drawn or self._panels])

    def _submit(self, function: Callable[..., Any], at: int, *arguments: Any, key: str) -> "Future[Any]":
        """Submit a task to the worker of panel ``at``; if needed, Dask may run the task on another worker."""
        assert self._client is not None
        self._home_of[key] = self._homes[at]
        return self._client.submit(
            function,
            *arguments,
            key=key,
            workers=[self._homes[at]],
            allow_other_workers=True,
            retries=RETRIES,
            priority=-1,  # sums over rows run first, so that their totals are sent while the noise is multiplied
        )


def cut_rows(order: int, parts: int) -> list[int]:
    """Return the bounds that divide the rows of an upper triangle into parts with about equal numbers of entries."""
    return [order - round(order * math.sqrt(1 - part / parts)) for part in range(parts + 1)]


def _memory_of(client: "Client") -> dict[str, int]:
    from dpca_tasks.sums.cluster_sum import await_workers  # imported late, because Dask is needed only with a cluster

    return await_workers(client)


def _itself(directions: NDArray[np.int32]) -> NDArray[np.int32]:
    return directions


def _total(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return reduce(np.add, parts)


type Integers = NDArray[np.int64]
type CheckColumns = tuple[Integers, Integers]

CHECK_COLUMNS = 4
"""The number of columns of the first product that are stored, and with which every later product must agree."""


class NoisedOperator:
    r"""One released noisy matrix ``M = S + E``, available only through products with public directions.

    `Curator.release_operator` creates this object.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        The query for the exact matrix S.
    total : callable
        Returns the exact sum over the rows for a product query.
    noise : callable
        Returns the operator of the noise matrix E, which draws the noise in the first product.
    load_or_store : callable
        Gets the first columns of V and of ``M V``, stores them unless columns are already stored for this step, and
        returns the stored columns.

    Notes
    -----
    *Why any number of products costs one release.* M is the integer matrix that `Curator.release` would have stored for
    the same request, because E is the same function of the key and the request digest. A product is computed from the
    same records without rounding. So it equals ``M V`` exactly for every V, and is post-processing of M. The directions
    V may depend on earlier products, and a resumed release may use other directions.

    *Why M does not change.* The request digest covers snapshot content, step, query, noise and scale, but not V. Before
    the first product is returned, the digest is stored with the first columns ``V_0`` of V and their products
    ``M V_0``, the check columns. A request with another digest is refused. The digest does not detect rows or programs
    that were changed without notice. These would give another S with the same E, so the difference of two answers would
    have no noise. The check columns detect such a change: M is symmetric, so a product Y of V satisfies
    ``V_0^T Y = (M V_0)^T V``. If S has changed by D, the change is missed only if ``D V`` is orthogonal to all columns
    of ``V_0``. Both sides are compared as integers modulo ``2^64``, and a product that fails the comparison is not
    returned.
    """

    def __init__(
        self,
        moment: SecondMoment | CentredMoment,
        total: Callable[[UnroundedProduct], Integers],
        noise: Callable[[], NoiseOperator],
        load_or_store: Callable[[CheckColumns], CheckColumns],
    ) -> None:
        self.order = moment.layout.order
        self._moment, self._total, self._make_noise, self._load_or_store = moment, total, noise, load_or_store
        self._step = moment.unit / moment.steps_per_unit / 2.0**DIRECTION_BITS
        self._noise: NoiseOperator | None = None
        self._check: CheckColumns | None = None

    def product(self, directions: NDArray[Any]) -> NDArray[np.float64]:
        """Return the product ``M V`` of the noisy matrix, computed in exact integers and rounded to floats at the end.

        Parameters
        ----------
        directions : integer array of shape (order, p)
            V in steps of ``2^-15``, with columns of norm at most ``sqrt 2``.

        Returns
        -------
        float64 array of shape (order, p), data units squared

        Raises
        ------
        InvalidInput
            When V has another shape, or longer columns.
        StepMismatch
            When the step was answered for another request, or when the product is not one of the released matrix. The
            product is not returned.
        """
        requested = np.ascontiguousarray(directions, np.int64)
        high, low = self._exactly(requested)
        wrapped = (high << LOW_BITS) + low
        if self._check is None:
            self._check = self._load_or_store((requested[:, :CHECK_COLUMNS], wrapped[:, :CHECK_COLUMNS]))
        columns, images = self._check
        if not np.array_equal(np.einsum("ij,ik->jk", columns, wrapped), np.einsum("ij,ik->jk", images, requested)):
            raise StepMismatch(
                "a product does not fit the matrix that this step released, so the product is not released; run `dpca "
                "dataset verify`, and finish the release with the version of dpca that began it."
            )
        return np.asarray((high * 2.0**LOW_BITS + low) * self._step)

    def _exactly(self, directions: Integers) -> Integers:
        """Return the exact product ``M V``, each entry as a high and a low integer.

        On a cluster, the noise is drawn and multiplied while the rows are summed.
        """
        product = UnroundedProduct.of(self._moment, directions)
        if self._noise is None:
            self._noise = self._make_noise()
        noised = self._noise.begin(directions)
        return carried(self._total(product).reshape(2, *directions.shape) + as_words(noised()))
