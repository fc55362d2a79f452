"""Files with a valid container but invalid content: bad arrays and false headers."""

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

SHAPES = (
    *((10**9, 7), (10**13, 7), (2**62, 7), (2**63, 7), (40, 10**9), (40, 10**13), (10**6, 10**6), (10**30, 10**30)),
    *((0, 7), (40, 0), (0, 0), (-1, 7), (40,), (), (40, 7, 1), (1, 280), (280, 1), (39, 7), (41, 7), (40, 8), (40, 6)),
)
DTYPES = (
    *("?", "i1", "u1", ">i2", "<u4", "i8", "u8", "f2", ">f4", "f8", "g", "c8", "c16", "S1", "S0", "U3", "M8[s]", "m8"),
    *("V4", "O", "(3,)f8"),
)
VALUES = (np.nan, np.inf, -np.inf, -1.0, -0.0, 1e308, 2.0**31, 2.0**53, 2.0**63, 1e-320, 0.5)


def rebuild(path: Path, rng: Random) -> None:
    """Change the content or the declarations of a container file."""
    with suppress(*_CANNOT):  # if a library refuses to write the change, the file stays unchanged
        {".npz": _rebuild_npz, ".npy": _rebuild_npy, ".parquet": _rebuild_parquet, ".h5ad": _rebuild_hdf}[path.suffix](
            path, rng
        )


_CANNOT: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    OSError,
    RuntimeError,
    MemoryError,
    pa.ArrowException,
)


def bad_array(array: NDArray[Any], rng: Random) -> NDArray[Any]:
    """Change the values, order, length, shape or dtype of an array."""
    changed = array.copy()
    variant = rng.randrange(8)
    if variant == 0 and changed.size:
        np.put(changed, [rng.randrange(changed.size) for _ in range(rng.choice((1, 3)))], _value(changed.dtype, rng))
    elif variant == 1:
        changed = np.random.default_rng(rng.randrange(9)).permutation(changed)
    elif variant == 2:
        changed = changed[: rng.randrange(len(changed) + 1)]
    elif variant == 3:
        changed = np.concatenate((changed, changed[: rng.choice((1, len(changed)))]))
    elif variant == 4:
        changed = changed.reshape(rng.choice(((-1, 1), (1, -1), (1, -1, 1))))
    elif variant == 5:
        changed = changed.astype(rng.choice(DTYPES))
    elif variant == 6:
        changed = changed + rng.choice((1, -1, 1000))
    else:
        changed = np.zeros_like(changed)
    return changed


def npy_header(rng: Random, *, shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    """Return the header of a .npy file with this shape and dtype, and random other content."""
    stream = io.BytesIO()
    described: dict[str, Any] = {"descr": dtype, "fortran_order": rng.random() < 0.3, "shape": shape}
    if rng.random() < 0.2:
        described[rng.choice(("descr", "fortran_order", "shape"))] = rng.choice((None, "x", -1, "((" * 90, [1], {}))
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


def _value(dtype: np.dtype[Any], rng: Random) -> Any:
    if dtype.kind == "f":
        return rng.choice(VALUES)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    return rng.choice((-1, 0, 7, 40, 10**9)) if limits is None else rng.choice((limits.min, limits.max, 7, 40))


def _rebuild_npz(path: Path, rng: Random) -> None:
    with np.load(path) as archive:
        members = {name: archive[name] for name in archive.files}
    name = rng.choice(("indptr", "indices", "data", "indptr", "indices", "data", "shape", "format"))
    variant = rng.randrange(6)
    if variant == 0:
        del members[name]
    elif variant == 1:
        members["shape"] = np.array(rng.choice(SHAPES))
    elif variant == 2:
        members["format"] = np.array(rng.choice((b"csc", "csr", b"", b"coo", "x" * 1000, 7)))
    elif variant == 3 and members[name].ndim:
        members[name] = bad_array(members[name], rng)
    if variant < 4:
        with path.open("wb") as file:
            rng.choice((np.savez, np.savez_compressed))(file, **members)
        return
    with zipfile.ZipFile(path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))) as file:
        for member, array in members.items():
            stream = io.BytesIO()
            np.save(stream, array)
            content = stream.getvalue()
            if member == name:
                shape = rng.choice(((10**9,), (10**13,), (2**63,), (), (3, 3), (array.size + 1,), (0,)))
                content = npy_header(rng, shape=shape, dtype=rng.choice(DTYPES)) + array.tobytes()
            with file.open(f"{member}.npy" if variant == 4 or member != name else f"../{member}.npy", "w") as entry:
                entry.write(content)  # unlike `ZipFile.writestr`, `ZipFile.open` writes no timestamp


def _rebuild_npy(path: Path, rng: Random) -> None:
    rows = np.load(path)
    if rng.random() < 0.5:
        head = npy_header(rng, shape=rng.choice(SHAPES), dtype=rng.choice(DTYPES))
        path.write_bytes(head + rows.tobytes() * rng.choice((1, 1, 0, 3)))
    else:
        np.save(path, bad_array(rows, rng), allow_pickle=True)


def _rebuild_parquet(path: Path, rng: Random) -> None:
    table = pq.read_table(path)
    at = rng.randrange(table.num_columns)
    name, length = table.column_names[at], table.num_rows
    options: list[Callable[[], Any]] = [
        lambda: pa.nulls(length),
        lambda: pa.array([None if rng.random() < 0.1 else 1.5 for _ in range(length)]),
        lambda: pa.array([str(rng.choice(VALUES)) for _ in range(length)]),
        lambda: pa.array([rng.choice(("", " 3 ", "x", "-1", "1e3", "9" * 30)) for _ in range(length)]),
        lambda: pa.array([rng.choice(VALUES) for _ in range(length)]),
        lambda: pa.array([rng.choice((-1, 2**63 - 1, -(2**63), 7)) for _ in range(length)]),
        lambda: pa.array([2**64 - 1] * length, pa.uint64()),
        lambda: pa.array([[1, 2]] * length),
        lambda: pa.array([{"a": 1}] * length),
        lambda: pa.array([b"\xff"] * length),
        lambda: pa.array([0] * length, pa.timestamp("us")),
        lambda: pa.array([True] * length),
        lambda: pa.array(["1"] * length).dictionary_encode(),
        lambda: pa.array([1] * length).cast(pa.decimal128(38, 4)),
        lambda: pa.array(np.full(length, 1.5, np.float16)),
    ]
    variant = rng.randrange(6)
    if variant == 0:
        table = table.remove_column(at)
    elif variant == 1:
        table = table.rename_columns([rng.choice(("", "row", "a\nb", "x")), *table.column_names[1:]])
    elif variant == 2:
        table = table.append_column(rng.choice((name, "more")), table.column(at))
    elif variant == 3:
        table = table.slice(0, rng.choice((0, 1)))
    else:
        table = table.set_column(at, name, rng.choice(options)())
    pq.write_table(table, path, row_group_size=rng.choice((1, 15, 1000)))


def _rebuild_hdf(path: Path, rng: Random) -> None:
    with h5py.File(path, "r+") as file:
        sparse = isinstance(file["X"], h5py.Group)
        name = rng.choice(("X/data", "X/indices", "X/indptr")) if sparse else "X"
        variant = rng.randrange(8)
        if variant == 0:
            del file[rng.choice([name, *file])]
        elif variant == 1:
            file["X"].attrs["shape"] = np.array(rng.choice(SHAPES), dtype=rng.choice(("i8", "f8", "O", "S3")))
        elif variant == 2:
            file["X"].attrs["encoding-type"] = rng.choice(("csc_matrix", "array", "", 7, "x" * 200, "csr_matrix"))
        elif variant == 3:
            array = bad_array(file[name][:], rng)
            del file[name]
            file[name] = array
        elif variant == 4:
            dtype = file[name].dtype
            shape = rng.choice(
                [shape for shape in SHAPES if min(shape, default=0) >= 0] if not sparse else ((10**12,),)
            )
            chunks = tuple(min(max(side, 1), rng.choice((16, 2**31))) for side in shape)
            del file[name]
            file.create_dataset(name, shape=shape, dtype=dtype, chunks=chunks)
        elif variant == 5:
            del file[name]
            file[name] = rng.choice((h5py.SoftLink("/X"), h5py.SoftLink("/none"), h5py.ExternalLink("none.h5", "/X")))
        elif variant == 6 and "var" in file:
            file["var"].attrs["_index"] = rng.choice(("none", "", 7, "/X", "_index"))
        else:
            del file["X"]
            file["X"] = rng.choice((7, "text", np.array([b"a"]), np.zeros((3, 7)), np.zeros(0)))
