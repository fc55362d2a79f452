"""The exact sum of a query over all blocks, in this process or on a Dask cluster, with the same bits either way.

One task folds a contiguous range of blocks into one partial sum; partial sums are merged in a tree. Contributions are
integers, so the order does not matter. Every partial sum lists the blocks, records and stored values that it covers,
and a merge refuses an overlap or a gap: a lost worker or a repeated task can neither lose a row nor count it twice.

>>> import numpy as np
>>> from dpca_tasks.records.sources import ArrayBlocks
>>> from dpca_tasks.queries.second_moment import SecondMoment
>>> query = SecondMoment(n_features=2, clip_norm=1.0, relation="add_remove", bits=4)
>>> exact_sum(ArrayBlocks(np.eye(2)), query)
array([256,   0, 256])
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import IncompleteSum
from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.partial_sums import Partial, fold

if TYPE_CHECKING:
    from distributed import Client

    from dpca_tasks.sums.resident_rows import Residency


def exact_sum(
    source: BlockSource,
    query: RowSum,
    *,
    client: "Client | None" = None,
    progress: Callable[[int, int], None] | None = None,
    residency: "Residency | None" = None,
) -> NDArray[np.int64]:
    """Sum a query over every block of a source, exactly.

    Parameters
    ----------
    source : BlockSource
    query : RowSum
    client : distributed.Client, optional
        The cluster to run on; None sums in this process.
    progress : callable, optional
        Called on a cluster with the number of finished partitions and the number of all; both are public.
    residency : Residency, optional
        Keeps gridded rows on the workers between sums over the same rows; None reads them again.

    Returns
    -------
    int64 array of shape (query.layout.size,)
        The packed total in grid steps, bit-identical for any blocks, partitions, workers and order.

    Raises
    ------
    IncompleteSum, WorkerFailed
    """
    if client is None:
        whole = fold(source, query, 0, source.n_blocks)
    else:
        from dpca_tasks.sums.cluster_sum import sum_on_cluster  # imported here: without a cluster, Dask is not needed

        whole = sum_on_cluster(source, query, client=client, progress=progress, residency=residency)
    return check_covered(source, whole)


def check_covered(source: BlockSource, whole: Partial) -> NDArray[np.int64]:
    """Return the total of a partial sum that covers a source.

    Raises
    ------
    IncompleteSum
        When it does not cover every record exactly once.
    """
    covered = (whole.first, whole.last, whole.records, whole.stored)
    if covered != (0, source.n_blocks, source.n_records, int(source.extents[:, 2].sum())):
        raise IncompleteSum("the sum does not cover every record exactly once; check the dataset, then run again.")
    return whole.total
