"""Pairs of neighbouring datasets on which a privacy violation is most visible.

The differing record attains the sensitivity if the code is correct, and is stored so that every processing step
matters: its norm is far above the clip norm, it has two rows, and each row holds its columns four times and out of
order. Code that omits the clip, clips row by row, or clips before it merges duplicates gives it more weight than 1.

>>> [pair.name for pair in worst_neighbours("replace_one", n_features=2, clip_norm=1.0)]
['along axes', 'between axes']

`AuditSubject` is the interface of a mechanism family to an audit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Mechanism, Terms
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.sources import ArrayBlocks

OVERSIZE = 3.0
PARTS = 4
BYSTANDERS = 400

type Direction = tuple[float, float]
_BETWEEN = ("between axes", (1.0, 1.0), (1.0, -1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Two datasets that are neighbours in a relation."""

    name: str
    left: BlockSource
    right: BlockSource


def worst_neighbours(relation: Relation, *, n_features: int, clip_norm: float) -> tuple[Neighbours, ...]:
    """Return the pairs to audit: one with the differing record along an axis, one half-way between two axes.

    Replaced records are orthogonal. Along axes they change only the diagonal of the second moment, between axes only
    the rest, so too little noise on either part is detected separately.

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
    """Return a pair for mechanisms whose noise follows the eigengap: one record turns the leading direction most.

    `BYSTANDERS` records lie along the first axis, and the differing one half-way to the second, where it turns the
    leading direction by the whole local sensitivity, up to the inverse square of their number.
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
    """Return the differing records: one on the left; none, an empty or another one on the right."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The functions with which an audit attacks a family of mechanisms.

    Parameters
    ----------
    names : tuple of str
        The mechanisms to audit.
    build : callable
        Builds a mechanism by name, with cheap settings.
    problem : callable
        Returns the public facts of the audited problem in a relation.
    neighbours : callable
        Returns the worst pairs of neighbouring datasets for the name of a mechanism and a problem.
    published : callable
        Returns, for a pair and a problem, a statistic of a result that is larger when the left dataset was used.
    """

    names: tuple[str, ...]
    build: Callable[[str], Mechanism[Any]]
    problem: Callable[[Relation], Terms]
    neighbours: Callable[[str, Any], tuple[Neighbours, ...]]
    published: Callable[[Neighbours, Any], Callable[[Any], float]]
