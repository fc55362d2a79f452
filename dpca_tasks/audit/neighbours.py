"""Pairs of neighbouring datasets on which a breach of privacy shows most.

The record by which they differ attains the sensitivity when all is well, and is stored so that every step on the way
matters: its norm is far above the clip norm, it has two rows, and each row holds its columns four times and out of
order.
Code that forgets the clip, clips row by row, or clips before it merges duplicates lets it count for more than one.

>>> [pair.name for pair in worst_neighbours("replace_one", n_features=2, clip_norm=1.0)]
['along axes', 'between axes']
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.sources import ArrayBlocks

OVERSIZE = 3.0
PARTS = 4
BYSTANDERS = 400

type Direction = tuple[float, float]
_BETWEEN = ("between axes", (1.0, 1.0), (1.0, -1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Two datasets that a relation calls neighbours."""

    name: str
    left: BlockSource
    right: BlockSource


def worst_neighbours(relation: Relation, *, n_features: int, clip_norm: float) -> tuple[Neighbours, ...]:
    """Return the pairs to audit: the differing record along an axis, and half-way between two.

    Replaced records are orthogonal. Along axes they differ on the diagonal of the second moment only, between axes
    off it only, so noise that is too small on either part is seen by itself.

    Raises
    ------
    InvalidInput
        When there are fewer than two features.
    """
    if n_features < 2:
        raise InvalidInput(f"n_features={n_features} leaves no second direction; audit with at least 2.")
    pairs = []
    for name, mine, other in (("along axes", (1.0, 0.0), (0.0, 1.0)), _BETWEEN):
        bystander = _record((0.0, 1.0), n_features, clip_norm)
        here, there = (
            _source([bystander, *records]) for records in _differing(relation, mine, other, n_features, clip_norm)
        )
        pairs.append(Neighbours(name=name, left=here, right=there))
    return tuple(pairs)


def gapped_neighbours(relation: Relation, *, n_features: int, clip_norm: float) -> tuple[Neighbours, ...]:
    """Return a pair for mechanisms whose noise follows the eigengap: a leading direction that one record turns most.

    `BYSTANDERS` records lie along the first axis, and the differing one half-way to the second: there it turns the
    leading direction by all of the local sensitivity, up to the inverse square of their number.
    """
    bystander = sparse.csr_array(([clip_norm], [0], [0, 1]), shape=(1, n_features))
    _, mine, other = _BETWEEN
    here, there = (
        _source([bystander] * BYSTANDERS + records, block_records=BYSTANDERS + 1)
        for records in _differing(relation, mine, other, n_features, clip_norm)
    )
    return (Neighbours(name="turned", left=here, right=there),)


def _differing(
    relation: Relation, mine: Direction, other: Direction, n_features: int, clip_norm: float
) -> tuple[list[sparse.csr_array], list[sparse.csr_array]]:
    """Return what the datasets do not share: one record here, and none, an empty or another one there."""
    here = [_record(mine, n_features, clip_norm)]
    match relation:
        case "add_remove":
            return here, []
        case "zero_out":
            return here, [_record((0.0, 0.0), n_features, clip_norm)]
        case "replace_one":
            return here, [_record(other, n_features, clip_norm)]


def _record(direction: Direction, n_features: int, clip_norm: float) -> sparse.csr_array:
    """Return two equal rows, each entry of which is stored in equal parts."""
    part = np.array(direction) * (OVERSIZE * clip_norm / PARTS)
    stored = 2 * PARTS
    rows = (np.tile(part, stored), np.tile([0, 1], stored), [0, stored, 2 * stored])
    return sparse.csr_array(rows, shape=(2, n_features))


def _source(records: list[sparse.csr_array], *, block_records: int = 1) -> ArrayBlocks:
    values, columns, lengths = (
        np.concatenate(parts)
        for parts in zip(*((one.data, one.indices, np.diff(one.indptr)) for one in records), strict=True)
    )
    row_ptr = np.concatenate([[0], np.cumsum(lengths)])
    rows = sparse.csr_array((values, columns, row_ptr), shape=(lengths.size, records[0].shape[1]))
    return ArrayBlocks(rows, record_rows=[one.shape[0] for one in records], block_records=block_records)
