"""A header that contradicts the data is refused in one line, in every format that has headers."""

import io
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from storage.errors import BadSource
from storage.formats.declared import Declared
from storage.formats.rejects import Quarantine, Rejects
from storage.formats.sources import open_file

CSR = sp.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
ARRAYS = {"indptr": CSR.indptr, "indices": CSR.indices, "data": CSR.data}


def read(path: Path, rejects: Rejects | None = None) -> list[float]:
    """Read a source to its end; return the values of the rows that are not rejected, in file order."""
    found: list[float] = []
    with closing(open_file(path, Declared())) as reader:
        for batch in reader.batches(Rejects() if rejects is None else rejects):
            kept = np.repeat(np.ones(len(batch.places), bool), np.diff(batch.row_ptr))
            if batch.rejected is not None:
                kept = ~np.repeat(batch.rejected, np.diff(batch.row_ptr))
            found += batch.values[kept].tolist()
    return found


@pytest.mark.parametrize(
    ("head", "entries", "reason"),
    [
        ("real symmetric\n3 2 1", "1 1 1", "symmetric matrix of 3 rows and 2 columns"),
        ("real symmetric\n2 3 1", "1 1 1", "symmetric matrix of 2 rows and 3 columns"),
        ("integer skew-symmetric\n3 2 1", "2 1 1", "symmetric matrix of 3 rows and 2 columns"),
        ("real symmetric\n2 2 2", "2 1 5\n1 2 5", "line 4 lies above the diagonal"),
        ("real symmetric\n2 2 2", "1 2 5\n2 1 5", "line 3 lies above the diagonal"),
        ("pattern symmetric\n2 2 2", "2 1\n1 2", "line 4 lies above the diagonal"),
        ("real skew-symmetric\n2 2 2", "2 1 5\n1 2 -5", "line 4 lies on or above the diagonal"),
        ("real skew-symmetric\n2 2 2", "2 1 5\n2 2 1", "line 4 lies on or above the diagonal"),
        ("pattern skew-symmetric\n2 2 1", "2 1", "kind 'coordinate pattern skew-symmetric' is not read"),
        ("real hermitian\n2 2 1", "2 1 1", "kind 'coordinate real hermitian' is not read"),
        ("complex hermitian\n2 2 1", "2 1 1 0", "kind 'coordinate complex hermitian' is not read"),
        ("integer general\n2 2 2", "2 1 5\n1 2 0.5", "line 4 is not an entry of the declared kind"),
        ("pattern general\n2 2 1", "2 1 5", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 1", "2 1 5 0", "line 3 is not an entry of the declared kind"),
        ("real general\n2 2 2", "2 1 5", "1 entries, but the size line declares 2"),
        ("real general\n2 2 1", "2 1 5\n1 1 1", "2 entries, but the size line declares 1"),
    ],
)
def test_matrix_market_entries_fit_their_banner(tmp_path: Path, head: str, entries: str, reason: str) -> None:
    (tmp_path / "x.mtx").write_text(f"%%MatrixMarket matrix coordinate {head}\n{entries}\n")
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / "x.mtx")


def test_an_entry_of_the_wrong_triangle_rejects_its_row_alone(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 1 7\n2 3 5\n3 1 4\n")
    rejects = Quarantine()
    rejects.open(tmp_path / "notes")
    assert read(tmp_path / "x.mtx", rejects) == [7.0, 4.0, 4.0]
    rejects.close()
    assert (tmp_path / "notes").read_text().count("above the diagonal") == 1


def test_symmetric_files_that_scipy_writes_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 5\n")
    assert read(tmp_path / "x.mtx") == [5.0, -5.0]


def npz(path: Path, members: Mapping[str, Any], *, twice: str | None = None) -> None:
    """Write the arrays of an archive, one of them perhaps two times."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in (*members.items(), *([(twice, members[twice])] if twice else [])):
            stream = io.BytesIO()
            np.save(stream, np.asarray(value))
            archive.writestr(f"{name}.npy", stream.getvalue())


SAVED = {**ARRAYS, "format": b"csr", "shape": CSR.shape}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("changed", "twice", "reason"),
    [
        ({"indptr": [0, 2, 2]}, None, "indptr ends with 2, but 3 values are stored"),
        ({"indptr": [0], "shape": (0, 3)}, None, "indptr ends with 0, but 3 values are stored"),
        ({"mask": [1, 0, 0]}, None, "'mask'"),
        ({"labels": [1, 0], "ids": [1, 2]}, None, "'labels'"),
        ({}, "data", "'data' twice"),
    ],
)
def test_an_npz_holds_one_matrix_and_all_of_it(
    tmp_path: Path, changed: Mapping[str, Any], twice: str | None, reason: str
) -> None:
    npz(tmp_path / "x.npz", {**SAVED, **changed}, twice=twice)
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_an_npz_that_scipy_wrote_is_read(tmp_path: Path, kind: Any) -> None:
    sp.save_npz(tmp_path / "x.npz", kind(CSR))
    assert read(tmp_path / "x.npz") == [1.0, 2.0, 3.0]


def test_a_second_array_in_an_npy_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as stream:
        np.save(stream, np.eye(2))
        np.save(stream, np.ones((2, 2)))
    with pytest.raises(BadSource, match="more bytes than its header declares"):
        read(tmp_path / "x.npy")


def store(path: Path, arrays: Mapping[str, Any], attributes: Mapping[str, Any], frames: Mapping[str, int]) -> None:
    """Write a store whose X is an array, or a group of arrays; frames have an index of so many names."""
    root: Any = h5py.File(path, "w") if path.suffix == ".h5ad" else zarr.open_group(path, mode="w")
    write: Any = (
        (lambda place, name, data: place.create_dataset(name, data=data))
        if path.suffix == ".h5ad"
        else (lambda place, name, data: place.create_array(name, data=data))
    )
    if "X" in arrays:
        write(root, "X", np.asarray(arrays["X"]))
    else:
        root.create_group("X")
        for name, data in arrays.items():
            write(root["X"], name, np.asarray(data))
    for name, value in attributes.items():
        root["X"].attrs[name] = value
    for frame, count in frames.items():
        root.create_group(frame)
        write(root[frame], "_index", np.arange(count))
        root[frame].attrs["_index"] = "_index"
    if path.suffix == ".h5ad":
        root.close()


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize("attribute", ["scale_factor", "add_offset", "_FillValue", "missing_value"])
def test_packed_values_of_a_sparse_store_are_refused(tmp_path: Path, suffix: str, attribute: str) -> None:
    store(tmp_path / f"x.{suffix}", ARRAYS, GROUP, {})
    root: Any = h5py.File(tmp_path / "x.h5ad", "r+") if suffix == "h5ad" else zarr.open_group(tmp_path / "x.zarr")
    root["X"]["data"].attrs[attribute] = 0.5
    if suffix == "h5ad":
        root.close()
    with pytest.raises(BadSource, match=f"data of X has the attribute {attribute}"):
        read(tmp_path / f"x.{suffix}")


def test_svmlight_that_counts_columns_from_0_is_refused(tmp_path: Path) -> None:
    for zero_based in (True, False):
        dump_svmlight_file(CSR, np.zeros(2), str(tmp_path / "x.svm"), zero_based=zero_based, comment="rows")
        with closing(open_file(tmp_path / "x.svm", Declared(n_features=3))) as reader:
            if zero_based:
                with pytest.raises(BadSource, match="a comment states that columns count from 0"):
                    list(reader.batches(Rejects()))
            else:
                assert [batch.indices.tolist() for batch in reader.batches(Rejects())] == [[0, 2, 1]]


GROUP = {"encoding-type": "csr_matrix", "shape": [2, 3]}


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize(
    ("arrays", "attributes", "frames", "reason"),
    [
        ({**ARRAYS, "indptr": [0, 2, 2]}, GROUP, {}, "indptr ends with 2, but 3 values are stored"),
        (ARRAYS, {**GROUP, "shape": [3, 3]}, {}, "disagree in length"),
        (ARRAYS, {**GROUP, "shape": [2.5, 3.0]}, {}, "no attribute shape of rows and columns"),
        (ARRAYS, {**GROUP, "shape": [2, 3], "h5sparse_format": "csc"}, {}, "attribute h5sparse_format"),
        (ARRAYS, {**GROUP, "shape": [2, 3], "h5sparse_shape": [3, 2]}, {}, "attribute h5sparse_shape"),
        ({**ARRAYS, "indptr": [0, 2, 3, 3]}, {"shape": [3, 3]}, {}, "needs the attribute encoding-type"),
        ({**ARRAYS, "mask": [1, 0, 0]}, GROUP, {}, "'mask'"),
        ({"X": CSR.toarray()}, {"shape": [3, 2]}, {}, r"attribute shape \(3, 2\)"),
        ({"X": CSR.toarray()}, {"encoding-type": "csr_matrix"}, {}, "encoding-type is 'csr_matrix'"),
        ({"X": CSR.toarray()}, {"scale_factor": 0.1}, {}, "scale_factor"),
        ({"X": CSR.toarray()}, {"add_offset": 5.0}, {}, "add_offset"),
        ({"X": CSR.toarray()}, {"_FillValue": 2.0}, {}, "_FillValue"),
        ({"X": CSR.toarray()}, {}, {"mask": 2}, "'mask' besides X"),
        ({"X": CSR.toarray()}, {}, {"var": 2}, "2 names in var, but 3 columns"),
        (ARRAYS, GROUP, {"var": 4}, "4 names in var, but 3 columns"),
        ({"X": CSR.toarray()}, {}, {"obs": 3}, "3 names in obs, but 2 rows"),
        (ARRAYS, GROUP, {"obs": 1}, "1 names in obs, but 2 rows"),
    ],
)
def test_attributes_of_a_store_fit_its_arrays(
    tmp_path: Path,
    suffix: str,
    arrays: Mapping[str, Any],
    attributes: Mapping[str, Any],
    frames: Mapping[str, int],
    reason: str,
) -> None:
    store(tmp_path / f"x.{suffix}", arrays, attributes, frames)
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / f"x.{suffix}")


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize(
    ("arrays", "attributes"),
    [
        (ARRAYS, GROUP),
        (ARRAYS, {"shape": [2, 3]}),
        ({"X": CSR.toarray()}, {"encoding-type": "array", "shape": [2, 3], "scale_factor": 1.0, "_FillValue": np.nan}),
    ],
)
def test_a_store_that_agrees_with_itself_is_read(
    tmp_path: Path, suffix: str, arrays: Mapping[str, Any], attributes: Mapping[str, Any]
) -> None:
    store(tmp_path / f"x.{suffix}", arrays, attributes, {"obs": 2, "var": 3})
    assert read(tmp_path / f"x.{suffix}") == [1.0, 2.0, 3.0]
