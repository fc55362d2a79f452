"""The rows of several nights as one source of blocks, where each row of one night is an individual of its own.

A source that does not tell whose row each is has no individual to follow from night to night. A stream then answers
about all rows that came so far: tick t reads the snapshots bound to ticks 1 to t, each row with the age of its
snapshot.

Examples
--------
::

    source = NightRows.of([(catalog.open(entry), entry.number) for entry in bound])
    source.read(0).first_seen                  # the number of the first snapshot
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from storage.datasets.snapshot_reader import Block, Dataset
from storage.errors import Conflict, Invalid

_LABEL = b"dpca night rows 1\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRows:
    """Snapshots one after the other, as one source of blocks; it pickles as their addresses and numbers.

    Attributes
    ----------
    nights : tuple of (Dataset, int or None), each snapshot once, with the number of its ingest
    """

    nights: tuple[tuple[Dataset, int | None], ...]

    @classmethod
    def of(cls, bound: Sequence[tuple[Dataset, int | None]]) -> Self:
        """Chain the snapshots bound to the ticks of a stream, in the order of the ticks.

        A snapshot bound to several ticks is read once, with the age of the first of them: its rows came once.

        Raises
        ------
        Invalid
            If there is none, or they have other numbers of columns.
        Conflict
            If a number falls.
        """
        nights = tuple({dataset.manifest.snapshot: (dataset, number) for dataset, number in bound}.values())
        if len({dataset.n_features for dataset, _ in nights}) != 1:
            raise Invalid("snapshots of one stream have the same columns, and there is at least one; give such ones")
        numbers = [-1 if number is None else number for _, number in nights]
        if numbers != sorted(numbers):
            raise Conflict("the numbers of snapshots never fall from tick to tick; bind the newest snapshot")
        return cls(nights=nights)

    @property
    def n_features(self) -> int:
        """Declared number of columns."""
        return self.nights[0][0].n_features

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return sum(dataset.n_blocks for dataset, _ in self.nights)

    @property
    def n_records(self) -> int:
        """Number of rows of all nights: private under add_remove."""
        return sum(dataset.n_records for dataset, _ in self.nights)

    @property
    def extents(self) -> NDArray[np.int64]:
        """Records, rows and stored values of each block, of shape (n_blocks, 3): private."""
        return np.concatenate([dataset.extents for dataset, _ in self.nights])

    @property
    def content(self) -> str:
        """Digest of the contents of all nights in hex: a secret of the curator."""
        digest = hashlib.sha256(_LABEL)
        for dataset, number in self.nights:
            digest.update(f"{number} {dataset.content}\n".encode())
        return digest.hexdigest()

    def read(self, block: int) -> Block:
        """Read one block; its ordinals count from the first row of the first night.

        Raises
        ------
        IndexError
            If there is no such block.
        Corrupt, Unavailable
            As `Dataset.read`.
        """
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"block {block} does not exist; there are {self.n_blocks}; ask for one of them")
        before = 0
        for dataset, number in self.nights:
            if block < dataset.n_blocks:
                found = dataset.read(block)
                return replace(found, first_record=before + found.first_record, first_seen=number)
            block -= dataset.n_blocks
            before += dataset.n_records
        raise AssertionError("the blocks of the nights add up to all blocks")
