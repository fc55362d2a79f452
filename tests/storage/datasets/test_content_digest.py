"""The content digest: blind to how rows are cut into pieces, and to nothing else."""

import struct

import numpy as np
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from storage.datasets.content_digest import ContentDigest

type Row = list[tuple[int, int]]
type Record = list[Row]

ROWS = st.dictionaries(st.integers(0, 6), st.integers(1, 9), max_size=4).map(lambda row: sorted(row.items()))
RECORDS = st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=6)


def add(digest: ContentDigest, records: list[Record], *, dtype: DTypeLike = np.float64) -> None:
    rows = [row for record in records for row in record]
    digest.update(
        values=np.array([value for row in rows for _, value in row], dtype=dtype),
        indices=np.array([column for row in rows for column, _ in row], dtype=np.uint8),
        row_nnz=np.array([len(row) for row in rows], dtype=np.int64),
        record_rows=np.array([len(record) for record in records], dtype=np.int64),
    )


def digest_of(records: list[Record], *, n_features: int = 7, dtype: DTypeLike = np.float64) -> str:
    digest = ContentDigest(n_features=n_features)
    add(digest, records, dtype=dtype)
    return digest.hexdigest()


@given(RECORDS, st.integers(0, 6), st.sampled_from(["u1", "i8", "f4", ">f8"]))
def test_pieces_and_exact_dtypes_do_not_matter(records: list[Record], cut: int, dtype: str) -> None:
    digest = ContentDigest(n_features=7)
    add(digest, records[:cut], dtype=dtype)
    add(digest, records[cut:])
    assert digest.hexdigest() == digest_of(records)


@given(RECORDS, RECORDS)
def test_unlike_records_have_unlike_digests(records: list[Record], others: list[Record]) -> None:
    assert (digest_of(records) == digest_of(others)) == (records == others)


def test_the_width_matters() -> None:
    assert digest_of([[[(0, 1)]]], n_features=7) != digest_of([[[(0, 1)]]], n_features=8)


def test_the_bytes_hashed_are_those_documented() -> None:
    streams = (
        np.array([2, 1], "<i8"),
        np.array([1, 0, 2], "<i8"),
        np.array([3, 0, 6], "<i8"),
        np.array([5.0, 1.0, 2.0], "<f8"),
    )
    text = b"dpca content 1\0" + struct.pack("<3q", 3, 2, 7)
    text += b"".join(blake3(stream.tobytes()).digest() for stream in streams)
    records = [[[(3, 5)], []], [[(0, 1), (6, 2)]]]
    assert digest_of(records) == blake3(text).hexdigest()
