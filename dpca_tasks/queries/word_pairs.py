"""The pair moment of documents: how often two words of one document are these two."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.word_moments import add_word_pairs
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm
from dpca_tasks.queries.documents import DocumentsSum
from dpca_tasks.records.blocks import RowBlock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordPairs(DocumentsSum):
    r"""Sum ``(c c^T - diag c) / (l (l - 1))`` over documents of counts c and l words, packed as an upper triangle.

    Notes
    -----
    The entries of a document's matrix M are shares of its ``l (l - 1)`` ordered pairs of words. Each is rounded toward
    zero to the grid by a division of integers, ``floor(2^bits N / (l (l - 1)))`` with N below ``2^32``: the same in any
    block and on any machine. So M has entries that are not negative and sum to at most 1, exactly.

    Sensitivity, in the Frobenius norm of the full matrix:

    - *add_remove, zero_out.* ``||M||_F <= sum of entries <= 1``, attained by a document of one word, many times.
    - *replace_one*, by a document of matrix N: ``||M - N||_F^2 = ||M||^2 + ||N||^2 - 2 <M, N> <= 2``, since no product
      of entries is negative; attained by documents of one word each, of two words.

    Rounding loses less than one step of each entry, and an entry is at least ``2^bits / (l (l - 1))`` steps.
    """

    name: ClassVar[str] = "word_pairs"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    @property
    def layout(self) -> Layout:
        """A symmetric matrix over the vocabulary."""
        return Layout(kind="symmetric", order=self.n_features)

    @property
    def largest_loss(self) -> float:
        """The largest share that the grid takes of a document's matrix, of the longest documents; public."""
        return min(1.0, self.words_at_most * (self.words_at_most - 1) / self.steps_per_unit)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for pairs of words; use noise for the l2 norm.")
        return SQRT_2_UP if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the pairs of the block's documents."""
        add_word_pairs(block.values, block.indices, block.row_ptr, self.n_features, self.steps_per_unit, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's pairs."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total
