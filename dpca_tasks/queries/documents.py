"""The base of queries over documents: one record is one document, its entries are how often it has each word."""

from dataclasses import dataclass

import numpy as np

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.word_moments import FEWEST_WORDS, count_words
from dpca_tasks.queries.base import RowSum
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock
from dpca_tasks.records.gridding import as_floats, canonical

LONGEST = 1 << 16
"""The largest bound on the words of a document: up to it all products of counts and steps are exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentsSum(RowSum):
    """A sum over documents, in each of which ``n_features`` words of a vocabulary are counted.

    Parameters
    ----------
    words_at_most : int
        L, a public bound on the words of a document, from 3 to 65,536.
    clip_norm : float
        1: counts are never scaled.
    **others
        As for `RowSum`; the sum lies on a grid of step ``2^-bits``.

    Notes
    -----
    A record of several rows is one document, of all their words. A document with a count that is negative, fractional
    or not finite adds nothing, and neither does one of fewer than 3 words or more than ``2^40``. Of a document of
    l > L words L are counted, chosen by it alone: with all its words in a line, in the order of their ids, those with
    which ``floor(i L / l)`` grows, i from 1. So shares of words stay as they are, to less than one word.
    """

    words_at_most: int
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check the public parameters."""
        RowSum.__post_init__(self)
        if not FEWEST_WORDS <= self.words_at_most <= LONGEST:
            raise InvalidInput(
                f"words_at_most={self.words_at_most} must be from {FEWEST_WORDS} to {LONGEST}; "
                "state a public bound on the words of a document."
            )
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm} must be 1: counts are not scaled; leave it out.")

    def grid(self, block: Block) -> RowBlock:
        """Return the counts of whole documents, cut to `words_at_most`."""
        rows = canonical(block, n_features=self.n_features)
        if rows.record_ptr.size != rows.row_ptr.size or (np.diff(rows.record_ptr) != 1).any():
            rows = canonical(_as_one_row(rows), n_features=self.n_features)
        counts, words, row_ptr = count_words(as_floats(rows.values), rows.indices, rows.row_ptr, self.words_at_most)
        return RowBlock(
            values=counts,
            indices=words,
            row_ptr=row_ptr,
            record_ptr=np.arange(row_ptr.size),
            first_record=block.first_record,
            n_features=self.n_features,
            bits=self.bits,
            density=block.density,
        )


def _as_one_row(rows: Block) -> Block:
    """Put all rows of a record into one; an entry that is no count becomes NaN, so that no other makes up for it."""
    values = as_floats(rows.values)
    is_count = (values >= 0) & (values == np.floor(values))
    return CsrBlock(
        values=np.where(is_count, values, np.nan),
        indices=rows.indices,
        row_ptr=rows.row_ptr[rows.record_ptr],
        record_ptr=np.arange(rows.record_ptr.size),
        first_record=rows.first_record,
        density=rows.density,
    )
