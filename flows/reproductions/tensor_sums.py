"""Moments of made records, summed once for many releases of them: what a curator sums is looked up, all else is real.

A release asks for a second moment and for a core along directions that its noise decides. Of documents of three words
the whole third moment is kept, and the core is made of it; of points the rows are kept. Either is summed in floats and
rounded once, where a query rounds each record to its grid: far below any noise (a test compares them).
Plans, queries, sensitivities, noise, shares, masks and all that is made of the answers are those of the product.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.point_triples import PointTriples
from dpca_tasks.queries.rounded_product import DIRECTION_BITS
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.word_pairs import WordPairs
from dpca_tasks.queries.word_triples import WordTriples
from dpca_tasks.records.sources import ArrayBlocks
from flows.reproductions.tensor_makers import WORDS

type Matrix = NDArray[np.float64]

_PIECE = 20_000


class Sums(Protocol):
    """The interface of records that are summed once."""

    def total(self, query: RowSum) -> Matrix:
        """Return the full tensor of a query, in its units."""


class DocumentSums:
    """Documents of three words: their pair and triple moments.

    Parameters
    ----------
    words : array of shape (n_documents, 3)
    n_features : int
    """

    def __init__(self, words: NDArray[np.int16], n_features: int) -> None:
        codes = np.ravel_multi_index(tuple(words.T.astype(np.int64)), (n_features,) * WORDS)
        counts = np.bincount(codes, minlength=n_features**WORDS).reshape((n_features,) * WORDS).astype(np.float64)
        turned = [counts.transpose(axes) for axes in itertools.permutations(range(WORDS))]
        self.triples: Matrix = np.add.reduce(turned) / len(turned)
        self.pairs: Matrix = self.triples.sum(axis=2)

    def total(self, query: RowSum) -> Matrix:
        """Return the pair moment, or the core of the triple moment."""
        if isinstance(query, WordPairs):
            return self.pairs
        assert isinstance(query, WordTriples)
        directions = query.directions / 2.0**DIRECTION_BITS
        core: Matrix = self.triples
        for _ in range(WORDS):
            core = np.tensordot(core, directions, axes=(0, 0))  # the axis goes last: all three in turn
        return core


class PointSums:
    """Points, and their second moment.

    Parameters
    ----------
    rows : array of shape (n_points, n_features)
    """

    def __init__(self, rows: Matrix) -> None:
        self.rows = rows
        self._moments: dict[float, Matrix] = {}

    def total(self, query: RowSum) -> Matrix:
        """Return the second moment of clipped points, or the core of the third."""
        if isinstance(query, SecondMoment):
            return self._moment(query.clip_norm)
        assert isinstance(query, PointTriples)
        directions, order = query.directions / 2.0**DIRECTION_BITS, query.layout.order
        third, first = np.zeros((order * order, order)), np.zeros(order)
        for start in range(0, len(self.rows), _PIECE):
            scores = clipped(self.rows[start : start + _PIECE] @ directions, query.radius) / query.radius
            third += (scores[:, :, None] * scores[:, None, :]).reshape(len(scores), -1).T @ scores
            first += scores.sum(axis=0)
        variance = query.variance_steps / 2.0**36
        eye = np.eye(order)
        taken = sum(np.einsum(places, first, eye) for places in ("i,jk->ijk", "j,ik->ijk", "k,ij->ijk"))
        return np.asarray(third.reshape((order,) * 3) - variance * taken)

    def _moment(self, clip_norm: float) -> Matrix:
        if clip_norm not in self._moments:
            total = np.zeros((self.rows.shape[1],) * 2)
            for start in range(0, len(self.rows), _PIECE):
                rows = clipped(self.rows[start : start + _PIECE], clip_norm) / clip_norm
                total += rows.T @ rows
            self._moments[clip_norm] = total
        return self._moments[clip_norm]


class TotalSums:
    """All sites' records together.

    Parameters
    ----------
    parts : sequence of Sums
    """

    def __init__(self, parts: Sequence[Sums]) -> None:
        self.parts = parts

    def total(self, query: RowSum) -> Matrix:
        """Return the sum of the parts."""
        return np.asarray(sum(part.total(query) for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummedRows(Rows):
    """Rows whose sums are looked up."""

    sums: Sums

    def sum(self, query: RowSum, *, stay: bool) -> NDArray[np.int64]:
        """Return a sum on the query's grid, packed."""
        total = self.sums.total(query)
        places = itertools.combinations_with_replacement(range(query.layout.order), total.ndim)
        packed = total[tuple(np.array(list(places)).T)]
        return np.asarray(np.rint(packed * query.steps_per_unit), np.int64)


def over_sums[C: Curator](curator: C, sums: Sums) -> C:
    """Return a curator that looks its sums up; it was made over no rows (`NO_ROWS`)."""
    curator._rows = SummedRows(source=NO_ROWS, sums=sums)
    return curator


def clipped(rows: Matrix, norm: float) -> Matrix:
    """Return rows, longer ones scaled down to a norm."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, norm / np.maximum(lengths, np.finfo(np.float64).tiny)))


NO_ROWS = ArrayBlocks(np.zeros((1, 1)))
