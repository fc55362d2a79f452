"""Readers of all formats: every source gives the same canonical rows, or one clear refusal.

Files of declared public facts contain the names of the columns, or the factors by which they are scaled.
"""

import gzip
import io
import os
import resource
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike
from sklearn.datasets import dump_svmlight_file

from dpca.errors import BadSource, Invalid, Unavailable
from storage.formats import csr, text
from storage.formats.batch import Rejects, RowBatch, make_canonical, stored_dtype
from storage.formats.declared import Declared, read_names, read_scale
from storage.formats.files import LocalFile
from storage.formats.sources import FilesReader, open_file


def read(path: Path, *, n_features: int | None = None, dtype: DTypeLike | None = None) -> sp.csr_array:
    """Return the canonical rows of a source, collected from all batches."""
    with closing(open_file(path, Declared(n_features=n_features))) as reader:
        stored = stored_dtype(reader.dtype if dtype is None else dtype)
        values, indices, counts = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in reader.batches(Rejects()):
            rows = make_canonical(batch, n_features=reader.n_features, dtype=stored, rejects=Rejects())
            values.append(rows.values.copy())
            indices.append(rows.indices.copy())
            counts.append(np.diff(rows.row_ptr))
            assert np.diff(rows.record_ptr).tolist() == [1] * len(counts[-1])
        assert reader.position == reader.size
    row_ptr = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    shape = (len(row_ptr) - 1, reader.n_features)
    return sp.csr_array((np.concatenate(values).astype(stored), np.concatenate(indices), row_ptr), shape=shape)


def assert_same(found: sp.csr_array, expected: sp.csr_array) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.has_canonical_format
    np.testing.assert_array_equal(found.toarray(), expected.toarray())


def random_rows(*, dtype: DTypeLike = np.float64, n_rows: int = 300) -> sp.csr_array:
    rng = np.random.default_rng(7)
    dense = np.round(rng.gamma(2.0, 20.0, (n_rows, 40))) * (rng.random((n_rows, 40)) < 0.2)
    return sp.csr_array(dense.astype(dtype))


def batch_of(values: list[float], columns: list[int]) -> RowBatch:
    return RowBatch(
        values=np.array([1.0, *values]),
        indices=np.array([0, *columns]),
        row_ptr=np.array([0, 1, 1 + len(values)]),
        record_ptr=np.arange(3),
        places=np.array([10, 12]),
        place="line",
    )


@pytest.mark.parametrize("name", ["x.svm", "x.svmlight", "x.LIBSVM", "x.svm.gz", "packed.svm"])
def test_svmlight_reads_what_scikit_learn_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(text, "PIECE", 256)
    rows = random_rows() / 7
    written = io.BytesIO()
    dump_svmlight_file(sp.csr_matrix(rows), np.zeros(rows.shape[0]), written, zero_based=False)
    packed = name in ("x.svm.gz", "packed.svm")
    (tmp_path / name).write_bytes(gzip.compress(written.getvalue()) if packed else written.getvalue())
    found = read(tmp_path / name, n_features=40)
    np.testing.assert_allclose(found.toarray(), rows.toarray(), rtol=1e-15)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n# end", "\n\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "# head\n"])
def test_svmlight_files_with_unusual_starts_and_ends_are_read(tmp_path: Path, start: str, ending: str) -> None:
    (tmp_path / "x.svm").write_bytes(f"{start}1 2:3\n-1{ending}".encode())
    assert read(tmp_path / "x.svm", n_features=2).toarray().tolist() == [[0, 3], [0, 0]]


@pytest.mark.parametrize(
    ("name", "head", "good", "bad"),
    [
        ("x.svm", "", "1 1:1\n", "1 1:one\n"),
        ("x.csv", "a,b\n", "1,2\n", "1,two\n"),
        ("x.mtx", "%%MatrixMarket matrix coordinate real general\n%\n200 2 101\n", "1 1 1\n", "1 one 1\n"),
    ],
    ids=["svmlight", "csv", "mtx"],
)
def test_line_numbers_continue_across_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, head: str, good: str, bad: str
) -> None:
    monkeypatch.setattr(text, "PIECE", 64)
    (tmp_path / name).write_text(head + good * (100 - head.count("\n")) + bad)
    with pytest.raises(BadSource, match=r"^line 101\b"):
        read(tmp_path / name, n_features=2)


def test_a_line_too_long_for_a_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 16)
    (tmp_path / "x.svm").write_bytes(b"1 1:1\n1 2:" + b"0" * 10_000)
    with pytest.raises(BadSource, match=r"^line 2: longer than"):
        read(tmp_path / "x.svm", n_features=2)


@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "i4", "u8", "i8", ">f4", "f4", "f8", ">i2"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_keeps_rows_and_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[..., None], dtype: str
) -> None:
    monkeypatch.setattr(csr, "BATCH_ROWS", 37)
    monkeypatch.setattr(csr, "BATCH_VALUES", 50)
    rows = random_rows(dtype=np.dtype(dtype).newbyteorder("="))
    arrays = {"indptr": rows.indptr, "indices": rows.indices, "data": rows.data.astype(dtype)}
    with (tmp_path / "x.npz").open("wb") as file:
        save(file, format=b"csr", shape=rows.shape, **arrays)
    assert_same(read(tmp_path / "x.npz"), rows)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_reads_what_scipy_saves(tmp_path: Path, kind: type[Any], compressed: bool) -> None:  # noqa: FBT001
    rows = random_rows()
    sp.save_npz(tmp_path / "x.npz", kind(rows), compressed=compressed)
    assert_same(read(tmp_path / "x.npz", n_features=40), rows)


PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=30)


@given(st.lists(PAIRS, min_size=1, max_size=5), st.sampled_from(["f8", "f4", "i2", "i8"]))
def test_canonical_rows_equal_a_plain_sum_of_entries(rows: list[list[tuple[int, int]]], dtype: str) -> None:
    row_ptr = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    batch = RowBatch(
        values=np.array([value for row in rows for _, value in row], dtype=np.float64),
        indices=np.array([column for row in rows for column, _ in row], dtype=np.int64),
        row_ptr=row_ptr,
        record_ptr=np.arange(len(rows) + 1),
        places=np.arange(len(rows)),
        place="row",
    )
    found = make_canonical(batch, n_features=6, dtype=np.dtype(dtype), rejects=Rejects())
    expected = np.zeros((len(rows), 6))
    for number, row in enumerate(rows):
        for column, value in row:
            expected[number, column] += value
    assert found.indices.tolist() == np.nonzero(expected)[1].tolist()
    assert found.values.tolist() == expected[np.nonzero(expected)].tolist()
    assert np.diff(found.row_ptr).tolist() == np.count_nonzero(expected, axis=1).tolist()


@pytest.mark.parametrize(
    ("values", "columns", "dtype", "reason"),
    [
        ([1.0], [5], "f8", r"column outside 0\.\.4"),
        ([1.0], [-1], "f8", r"column outside 0\.\.4"),
        ([np.nan], [1], "f8", "not finite"),
        ([np.inf, -np.inf], [1, 1], "f8", "not finite"),
        ([1e308, 1e308], [1, 1], "f8", "outside the range of float64"),
        ([1e39], [1], "f4", "outside the range of float32"),
        ([0.5], [1], "i4", "not whole"),
        ([0.5, 0.5], [1, 1], "i4", "not whole"),
        ([300.0], [1], "u1", "outside the range of uint8"),
        ([-1.0], [1], "u8", "outside the range of uint64"),
        ([1.0, 1.0], [1, 1], "?", "outside the range of bool"),
        ([2.0**53, 1.0], [1, 1], "i8", "outside the range of int64"),
        ([2.0**53, 1.0, -1.0], [1, 1, 1], "u8", "outside the range of uint64"),
    ],
)
def test_values_that_the_dtype_cannot_hold_are_refused(
    values: list[float], columns: list[int], dtype: str, reason: str
) -> None:
    with pytest.raises(BadSource, match=f"^line 12 has a .*{reason}"):
        make_canonical(batch_of(values, columns), n_features=5, dtype=np.dtype(dtype), rejects=Rejects())


def test_a_value_that_rounds_to_zero_is_an_explicit_zero() -> None:
    rows = make_canonical(
        batch_of([1e-60, -0.0, 0.1], [1, 2, 3]), n_features=5, dtype=np.dtype("f4"), rejects=Rejects()
    )
    assert rows.indices.tolist() == [0, 3]
    assert rows.values.tolist() == [1.0, float(np.float32(0.1))]


@pytest.mark.parametrize("dtype", ["f2", "complex", "U4", "O", "spam", "datetime64[s]"])
def test_a_dtype_that_is_not_stored_is_refused(dtype: str) -> None:
    with pytest.raises(Invalid, match="is not stored"):
        stored_dtype(dtype)


def save_parts(path: Path, **changes: Any) -> None:
    parts: dict[str, Any] = {
        "format": b"csr",
        "shape": (2, 3),
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([0, 2]),
        "data": np.array([1.0, 2.0]),
    }
    parts |= changes
    np.savez(path, **{name: part for name, part in parts.items() if part is not None})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": b"csc"}, r"'csc' matrix.*\.tocsr\(\)"),
        ({"format": None}, "no array 'format'"),
        ({"data": None}, "no array 'data'"),
        ({"shape": (6,)}, "shape"),
        ({"shape": (2, -3)}, "shape"),
        ({"shape": (2, 0)}, "the matrix has 0 columns"),
        ({"shape": (3, 3)}, "disagree in length"),
        ({"indices": np.array([0])}, "disagree in length"),
        ({"indices": np.array([0, 3])}, r"row 1 has a column outside 0\.\.2"),
        ({"indices": np.array([-1, 2])}, r"row 0 has a column outside 0\.\.2"),
        ({"indices": np.array([0.0, 2.0])}, "must hold integers"),
        ({"indptr": np.array([1, 1, 2])}, "starts with 1"),
        ({"indptr": np.array([0, 2, 1])}, "out of order or too large at row 1"),
        ({"indptr": np.array([0, 1, 3])}, "out of order or too large at row 1"),
        ({"indptr": np.array([0, 1, 2**64 - 1], dtype=np.uint64)}, "out of order or too large at row 1"),
        ({"data": np.array([1.0, np.nan])}, "row 1 has a value that is not finite"),
        ({"data": np.array([1, 2**53 + 1])}, "row 1 has a whole number of 2"),
        ({"data": np.array([1.0, 2j])}, "real numbers"),
        ({"data": np.array(["a", "b"])}, "real numbers"),
        ({"data": np.array([[1.0, 2.0]])}, "not a readable .npz"),
        ({"data": np.array([None, 1], dtype=object)}, "not a readable .npz"),
    ],
)
def test_a_bad_npz_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    save_parts(tmp_path / "x.npz", **changes)
    with pytest.raises(BadSource, match=reason) as caught:
        read(tmp_path / "x.npz")
    assert "\n" not in str(caught.value)


def test_other_sparse_formats_of_scipy_are_refused(tmp_path: Path) -> None:
    for kind in ("csc", "coo", "bsr", "dia"):
        sp.save_npz(tmp_path / "x.npz", random_rows(n_rows=40).asformat(kind))
        with pytest.raises(BadSource, match=rf"'{kind}' matrix.*\.tocsr\(\)"):
            read(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.npz", "x.gz"])
def test_a_truncated_or_changed_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "x.npz":
        sp.save_npz(path, random_rows())
    else:
        path.write_bytes(gzip.compress(b"1 1:1 2:0.5\n" * 1000))
    whole = path.read_bytes()
    for size in range(1, len(whole), len(whole) // 23):
        path.write_bytes(whole[:size])
        with pytest.raises(BadSource):
            read(path, n_features=40)
    for at in range(len(whole) // 3, len(whole) // 2, len(whole) // 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(BadSource):
            read(path, n_features=40)


@pytest.mark.parametrize("content", [b"PK spam", b"spam", b"\x93NUMPY", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_not_an_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(BadSource, match="npz"):
        read(tmp_path / "x.npz")


def test_an_npz_header_that_declares_too_much_allocates_nothing(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    save_parts(tmp_path / "x.npz", data=None)
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("data.npy", header.getvalue() + bytes(16))
    with pytest.raises(BadSource, match="not a readable"):
        read(tmp_path / "x.npz")


def test_unreadable_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "plain.svm.gz").write_text("1 1:1\n")
    (tmp_path / "empty.svm.gz").write_bytes(gzip.compress(b""))
    for name, reason in {
        "missing": "no such file",
        ".": "not a regular file",
        "empty": "is empty",
        "plain.svm.gz": "not gzip",
        "x" * 300: "cannot be read",
    }.items():
        with pytest.raises(BadSource, match=reason):
            read(tmp_path / name, n_features=3)
    assert read(tmp_path / "empty.svm.gz", n_features=3).shape == (0, 3)


def test_the_width_is_declared_never_inferred(tmp_path: Path) -> None:
    (tmp_path / "x.svm").write_text("1 1:1\n")
    save_parts(tmp_path / "x.npz")
    with pytest.raises(Invalid, match="declare the number of features"):
        read(tmp_path / "x.svm")
    with pytest.raises(BadSource, match="has 3 columns, but 4 features are declared"):
        read(tmp_path / "x.npz", n_features=4)
    for n_features in (0, -1, 2**31):
        with pytest.raises(Invalid, match="must be in"):
            read(tmp_path / "x.svm", n_features=n_features)


@pytest.mark.parametrize("change", ["content", "inode", "link", "pipe", "gone"])
def test_a_file_that_changes_between_its_head_and_its_rows_is_refused(tmp_path: Path, change: str) -> None:
    path, other = tmp_path / "rows.csv", tmp_path / "other.csv"
    for file in (path, other):
        file.write_text("a,b\n1,2\n")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    with closing(FilesReader([LocalFile(path)], Declared(n_features=2), Rejects())) as reader:
        if change == "content":
            path.write_text("b,a\n1,2\n")
            os.utime(path, ns=(1, 1))
        elif change == "inode":
            other.replace(path)
        else:
            path.unlink()
        if change == "link":
            path.symlink_to(other)
        elif change == "pipe":
            os.mkfifo(path)
        with pytest.raises(BadSource, match=r"changed while it was read|no such file|not a regular file"):
            list(reader.batches(Rejects()))


def test_a_link_is_read_and_its_concurrent_replacement_is_not(tmp_path: Path) -> None:
    path, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    path.write_text("a,b\n" + "1,2\n" * 200_000)
    link.symlink_to(path)
    with closing(FilesReader([LocalFile(link)], Declared(n_features=2), Rejects())) as reader:
        batches = reader.batches(Rejects())
        first = next(batches)
        link.unlink()
        link.write_text("a,b\n" + "9,9\n" * 200_000)
        values = np.concatenate([first.values, *(batch.values for batch in batches)])
    assert len(values) == 400_000
    assert set(values) == {1.0, 2.0}


def test_a_lack_of_file_descriptors_is_not_reported_as_a_fault_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(path, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(path, os.O_RDONLY))
        with pytest.raises(Unavailable, match="raise the limit"):
            FilesReader([LocalFile(path)], Declared(n_features=2), Rejects())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def test_a_byte_order_mark_is_no_part_of_a_name_or_number(tmp_path: Path) -> None:
    names, factors = tmp_path / "names.txt", tmp_path / "scale.txt"
    names.write_text("äge\nweight\n", encoding="utf-8-sig")
    factors.write_text("0.5\n2\n", encoding="utf-8-sig")
    assert read_names(names) == ("äge", "weight")
    assert read_scale(factors, n_features=2).tolist() == [0.5, 2.0]


@pytest.mark.parametrize("text", ["a\n\nb\n", "a\nb\na\n", "\n"])
def test_names_that_are_empty_or_occur_twice_are_refused_with_their_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(Invalid, match=r"line \d of the feature names in .*names\.txt (is empty|occurs twice)"):
        read_names(path)


@pytest.mark.parametrize("text", ["1\n", "1\n2\n3\n", "1\n0\n", "1\n-2\n", "1\ninf\n", "1\nnan\n"])
def test_factors_that_are_not_one_positive_number_for_each_column_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scale.txt"
    path.write_text(text)
    with pytest.raises(Invalid, match="must hold 2 positive finite numbers"):
        read_scale(path, n_features=2)
