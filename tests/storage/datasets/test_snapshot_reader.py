"""Snapshots on disk and their content digest: rows are read back as written, and damage is detected.

The digest does not depend on how rows are cut into blocks, and depends on everything else.
"""

import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import zarr
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from dpca.errors import Corrupt, Invalid, NotFound
from storage.datasets import snapshot_writer
from storage.datasets.content_digest import ContentDigest, Manifest
from storage.datasets.snapshot_reader import Block, Dataset
from storage.datasets.snapshot_writer import COMPRESSORS, SnapshotWriter, write_chunk
from storage.datasets.staging import Extent
from storage.formats.batch import RowBatch

type Row = list[tuple[int, int]]
type Record = list[Row]

ROWS = st.dictionaries(st.integers(0, 5), st.integers(1, 9), max_size=6).map(lambda row: sorted(row.items()))
RECORDS = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=12)


def batch_of(records: list[Record]) -> RowBatch:
    rows = [row for record in records for row in record]
    return RowBatch(
        values=np.array([value for row in rows for _, value in row], dtype=np.float64),
        indices=np.array([column for row in rows for column, _ in row], dtype=np.int64),
        row_ptr=np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64))),
        record_ptr=np.concatenate(([0], np.cumsum([len(record) for record in records], dtype=np.int64))),
        places=np.arange(len(rows)),
        place="row",
    )


def write(
    folder: Path,
    records: list[Record],
    *,
    n_features: int = 6,
    dtype: DTypeLike = np.float64,
    block_nnz: int = snapshot_writer.BLOCK_NNZ,
    cut: int = 0,
    rejected: Sequence[bool] = (),
) -> Dataset:
    writer = SnapshotWriter(folder, n_features=n_features, dtype=np.dtype(dtype), block_nnz=block_nnz)
    for part, flags in ((records[:cut], rejected[:cut]), (records[cut:], rejected[cut:])):
        writer.append(replace(batch_of(part), rejected=np.array(flags, np.bool_) if flags else None))
    totals = writer.finish()
    writer.describe(
        Manifest(
            snapshot="0" * 32,
            dataset="x",
            ledger="l",
            populations=["p"],
            privacy_unit="row",
            rows_digest="",
            n_features=n_features,
            n_records=totals.n_records,
            n_rows=totals.n_rows,
            nnz=totals.nnz,
            n_blocks=totals.n_blocks,
            dtype=str(np.dtype(dtype)),
            content_digest=totals.content_digest,
            records_at_most=None,
            source="test",
            code_version="0",
        )
    )
    return Dataset.open(folder)


def records_in(block: Block) -> list[Record]:
    rows = [
        list(zip(block.indices[a:b].tolist(), block.values[a:b].tolist(), strict=True))
        for a, b in zip(block.row_ptr, block.row_ptr[1:], strict=False)
    ]
    return [rows[a:b] for a, b in zip(block.record_ptr, block.record_ptr[1:], strict=False)]


def single_rows(count: int, *, nnz: int = 3) -> list[Record]:
    return [[[(column, 1 + number % 9) for column in range(nnz)]] for number in range(count)]


def files_of(dataset: Dataset, name: str) -> list[Path]:
    return sorted(path for path in (Path(dataset.address) / name / "c").rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snapshots")


@settings(max_examples=25)
@given(records=RECORDS, block_nnz=st.integers(1, 40), cut=st.integers(0, 12), dtype=st.sampled_from(["u1", "f8"]))
def test_records_are_read_back_complete_and_in_order(
    folders: Path, records: list[Record], block_nnz: int, cut: int, dtype: str
) -> None:
    folder = folders / str(len(list(folders.iterdir())))
    dataset = write(folder, records, block_nnz=block_nnz, cut=cut, dtype=dtype)
    blocks = [dataset.read(number) for number in range(dataset.n_blocks)]
    assert [record for block in blocks for record in records_in(block)] == records
    sizes = [len(block.record_ptr) - 1 for block in blocks]
    assert [block.first_record for block in blocks] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert all(len(block.values) <= max(block_nnz, 6) or len(block.record_ptr) == 2 for block in blocks)
    assert dataset.verify() == dataset.content == write(folder / "other", records).content
    assert dataset.n_records == len(records)
    assert dataset.manifest.nnz == sum(len(row) for record in records for row in record)


def test_blocks_do_not_depend_on_batches(tmp_path: Path) -> None:
    records = single_rows(100, nnz=4)
    cuts = [write(tmp_path / str(cut), records, block_nnz=30, cut=cut) for cut in (0, 1, 7, 50)]
    shapes = [[len(data.read(block).values) for block in range(data.n_blocks)] for data in cuts]
    assert shapes == [[28] * 14 + [8]] * 4


def test_a_block_closes_at_the_row_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writer, "BLOCK_ROWS", 5)
    empty, long = cast(Record, [[]]), cast(Record, [[(1, 1)]] * 13)
    records = [empty] * 12 + [long] + [empty] * 2
    dataset = write(tmp_path / "x", records)
    blocks = [records_in(dataset.read(number)) for number in range(dataset.n_blocks)]
    assert [len(block) for block in blocks] == [5, 5, 2, 1, 2]
    assert list(chain.from_iterable(blocks)) == records
    assert dataset.verify() == dataset.content


def test_the_layout_is_the_documented_one_for_any_zarr_reader(tmp_path: Path) -> None:
    dataset = write(tmp_path / "x", single_rows(50), n_features=300, dtype=np.float32, block_nnz=1)
    group = zarr.open_group(Path(dataset.address), mode="r")
    assert {name: (array.shape, array.chunks, array.dtype.name) for name, array in group.arrays()} == {
        "values": ((1, 150), (1, 150), "float32"),
        "indices": ((1, 150), (1, 150), "uint16"),
        "row_nnz": ((1, 50), (1, 50), "uint16"),
        "extents": ((1, 5), (1, 5), "int64"),
    }
    assert group.attrs["format"] == "dpca-rows"
    assert group.attrs["content_digest"] == dataset.content


def test_several_blocks_share_one_padded_width(tmp_path: Path) -> None:
    dataset = write(tmp_path / "x", [*single_rows(5), [[(column, 2) for column in range(6)]] * 5])
    assert dataset.n_blocks == 1
    split = write(tmp_path / "y", [*single_rows(5), [[(column, 2) for column in range(6)]] * 5], block_nnz=8)
    group = zarr.open_group(Path(split.address), mode="r")
    shapes = {name: (array.shape, array.chunks) for name, array in group.arrays()}
    assert shapes["values"] == ((4, 32), (1, 8))
    assert shapes["record_rows"][0] == (4, snapshot_writer.BLOCK_ROWS)
    assert len(files_of(split, "record_rows")) == 1
    assert split.verify() == dataset.content


@pytest.mark.parametrize("dtype", ["u1", "u2", "f8"])
def test_a_chunk_has_the_bytes_that_zarr_writes(tmp_path: Path, dtype: str) -> None:
    items = (np.arange(5_000) % 200).astype(dtype)
    group = zarr.create_group(tmp_path, zarr_format=3)
    group.create_array("zarr", data=items[None], chunks=(1, 2_500), compressors=COMPRESSORS)
    for column in (0, 1):
        write_chunk(tmp_path / "ours", row=0, column=column, items=items[2_500 * column :][:2_500])
        assert (tmp_path / f"ours/c/0/{column}").read_bytes() == (tmp_path / f"zarr/c/0/{column}").read_bytes()


@pytest.mark.parametrize("records", [single_rows(5), single_rows(500), [[[]]]], ids=["one", "several", "empty"])
@pytest.mark.parametrize("is_described", [False, True])
def test_blocks_of_a_killed_writer_are_recognised(tmp_path: Path, records: list[Record], *, is_described: bool) -> None:
    extents: list[Extent] = []
    options: dict[str, Any] = {"n_features": 600, "dtype": np.dtype(np.float64), "block_nnz": 600}
    first = SnapshotWriter(tmp_path / "x", on_block=extents.append, **options)
    first.append(batch_of(records))
    totals = first.finish()
    for array in () if is_described or len(extents) == 1 else ("values", "indices", "row_nnz", "extents"):
        (tmp_path / "x" / array / "zarr.json").unlink()
    again = SnapshotWriter(tmp_path / "x", written=extents, on_block=extents.append, **options)
    again.append(batch_of(records))
    assert again.finish() == totals
    assert len(extents) == totals.n_blocks
    group = zarr.open_group(tmp_path / "x", mode="r")
    assert {cast("zarr.Array[Any]", group[name]).shape[0] for name in ("values", "row_nnz", "extents")} == {
        len(extents)
    }


def test_a_wide_schema_needs_no_wide_chunks(tmp_path: Path) -> None:
    wide: list[Record] = [[[(0, 1), (4_999_999, 2)]], [[]]]
    dataset = write(tmp_path / "x", wide, n_features=5_000_000)
    assert dataset.read(0).indices.dtype == np.uint32
    assert records_in(dataset.read(0)) == wide
    assert sum(path.stat().st_size for path in Path(dataset.address).rglob("*") if path.is_file()) < 20_000


def test_arrays_are_read_only_and_hidden_from_repr(tmp_path: Path) -> None:
    dataset = write(tmp_path / "x", [[[(0, 1)], []], [[(1, 7)]]])
    block = dataset.read(0)
    arrays: list[NDArray[np.generic]] = [block.values, block.indices, block.row_ptr, block.record_ptr]
    assert not any(array.flags.writeable for array in arrays)
    assert repr(block) == "Block()"
    assert dataset.content not in repr(dataset)


def test_a_pickled_snapshot_contains_its_path_alone_and_opens_in_another_process(tmp_path: Path) -> None:
    dataset = write(tmp_path / "x", single_rows(40), block_nnz=20)
    pickled = pickle.dumps(dataset)
    assert dataset.content.encode() not in pickled
    assert pickle.loads(pickled) == dataset
    code = f"import pickle; print(pickle.loads({pickled!r}).verify())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == dataset.content


def test_threads_read_the_same_blocks(tmp_path: Path) -> None:
    dataset = write(tmp_path / "x", single_rows(200), block_nnz=20)
    with ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(dataset.read, list(range(dataset.n_blocks)) * 3))
    assert list(chain.from_iterable(map(records_in, blocks))) == single_rows(200) * 3


@pytest.mark.parametrize("name", ["values", "indices", "row_nnz", "extents"])
def test_one_flipped_byte_is_detected(tmp_path: Path, name: str) -> None:
    dataset = write(tmp_path / "x", single_rows(40), block_nnz=60)
    path = files_of(dataset, name)[0]
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 7)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        copy = Path(dataset.address).rename(Path(dataset.address).with_name(f"{name}-{at}"))
        with pytest.raises(Corrupt):
            Dataset.open(copy).read(0)
        copy.rename(Path(dataset.address))


@pytest.mark.parametrize("name", ["values", "indices", "row_nnz", "extents"])
def test_a_lost_chunk_is_detected(tmp_path: Path, name: str) -> None:
    dataset = write(tmp_path / "x", single_rows(40), block_nnz=60)
    files_of(dataset, name)[0].unlink()
    with pytest.raises(Corrupt):
        Dataset.open(Path(dataset.address).rename(tmp_path / "y")).read(0)


def test_exchanged_chunks_are_detected(tmp_path: Path) -> None:
    dataset = write(tmp_path / "x", single_rows(40), block_nnz=60)
    first, second = files_of(dataset, "values")[:2]
    second.write_bytes(first.read_bytes())
    for read in (dataset.verify, lambda: dataset.read(1)):
        with pytest.raises(Corrupt, match=r"block 1 of .* does not match the recorded sizes"):
            read()
    shorter = write(tmp_path / "y", single_rows(10, nnz=2), block_nnz=60)
    files_of(dataset, "row_nnz")[0].write_bytes(files_of(shorter, "row_nnz")[0].read_bytes())
    with pytest.raises(Corrupt):
        dataset.read(0)


@pytest.mark.parametrize("name", ["record_rows", "rejected"])
def test_a_lost_chunk_of_a_rarely_needed_array_is_detected(tmp_path: Path, name: str) -> None:
    record: Record = [[(1, 1)], [(2, 1)]] if name == "record_rows" else [[]]
    records = [*([record] if number % 5 == 0 else single_rows(1) for number in range(40))]
    dataset = write(
        tmp_path / "x",
        list(chain.from_iterable(records)),
        block_nnz=20,
        rejected=[name == "rejected" and number % 5 == 0 for number in range(40)],
    )
    assert dataset.read(1).rejected.any() == (name == "rejected")
    files_of(dataset, name)[1].unlink()
    with pytest.raises(Corrupt, match=r"block 1 of .* does not match the recorded sizes"):
        dataset.read(1)


def test_a_folder_that_is_not_a_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no snapshot"):
        Dataset.open(tmp_path / "missing")
    with pytest.raises(Corrupt, match="not a readable snapshot"):
        Dataset.open(tmp_path)
    zarr.create_group(tmp_path / "foreign")
    with pytest.raises(Corrupt, match="format"):
        Dataset.open(tmp_path / "foreign")
    dataset = write(tmp_path / "x", single_rows(3))
    zarr.open_group(Path(dataset.address)).attrs["format_version"] = 2
    with pytest.raises(Corrupt, match="the dpca that wrote it"):
        Dataset.open(Path(dataset.address).rename(tmp_path / "y"))


def test_a_manifest_is_read_back_and_must_be_complete(tmp_path: Path) -> None:
    manifest = replace(write(tmp_path / "x", single_rows(3)).manifest, records_at_most=5)
    attributes = manifest.to_attributes()
    assert Manifest.from_attributes(attributes) == manifest
    del attributes["populations"], attributes["scale"]
    with pytest.raises(Corrupt, match="lacks populations, scale"):
        Manifest.from_attributes(attributes)


@pytest.mark.parametrize("block", [-1, 1])
def test_a_block_that_does_not_exist_is_an_index_error(tmp_path: Path, block: int) -> None:
    with pytest.raises(IndexError, match="does not exist"):
        write(tmp_path / "x", single_rows(3)).read(block)


@pytest.mark.parametrize("block_nnz", [0, -5, 2**28])
def test_a_stored_value_budget_out_of_range_is_refused(tmp_path: Path, block_nnz: int) -> None:
    with pytest.raises(Invalid, match="block_nnz"):
        write(tmp_path / "x", single_rows(3), block_nnz=block_nnz)


CONTENT_DIGEST_ROWS = st.dictionaries(st.integers(0, 6), st.integers(1, 9), max_size=4).map(
    lambda row: sorted(row.items())
)
CONTENT_DIGEST_RECORDS = st.lists(st.lists(CONTENT_DIGEST_ROWS, min_size=1, max_size=3), min_size=1, max_size=6)


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


@given(CONTENT_DIGEST_RECORDS, st.integers(0, 6), st.sampled_from(["u1", "i8", "f4", ">f8"]))
def test_the_digest_does_not_depend_on_pieces_and_exact_dtypes(records: list[Record], cut: int, dtype: str) -> None:
    digest = ContentDigest(n_features=7)
    add(digest, records[:cut], dtype=dtype)
    add(digest, records[cut:])
    assert digest.hexdigest() == digest_of(records)


@given(CONTENT_DIGEST_RECORDS, CONTENT_DIGEST_RECORDS)
def test_different_records_have_different_digests(records: list[Record], others: list[Record]) -> None:
    assert (digest_of(records) == digest_of(others)) == (records == others)


def test_the_digest_depends_on_which_records_were_emptied() -> None:
    digests = []
    for rejected in (None, [False, False], [True, False], [False, True]):
        digest, (empty, rows) = ContentDigest(n_features=3), (np.zeros(0, np.int64), np.zeros(2, np.int64))
        flags = None if rejected is None else np.array(rejected)
        digest.update(values=empty, indices=empty, row_nnz=rows, record_rows=rows + 1, rejected=flags)
        digests.append(digest.hexdigest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_digest_depends_on_the_width() -> None:
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
