"""Mutations of a file, each a function of its bytes and of a seeded random generator.

Some files have a valid container but invalid content: bad arrays and false headers.
"""

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

TOKENS = (
    *(b"nan", b"-inf", b"inf", b"NaN", b"1e999", b"-1e999", b"1e-999", b"", b" ", b"-", b"+", b".", b"e5", b"0x10"),
    *(b"-1", b"0", b"7", b"8", b"40", b"41", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807"),
    *(b"9223372036854775808", b"18446744073709551616", b"99999999999999999999999", b"1_000", b"1,5", b"1.5", b"1:1:1"),
    *(b"\xff\xfe", b"\xd9\xa1", b"\x00", b"#", b"%", b'"', b'""', b"'", b"qid:1", b"null", b"true", b"None", b"1e308"),
    *(b"9007199254740993", b"0.1234567890123456789012345678901234567890", b"1000000000", b"1" * 400, b"1e", b"\r"),
)
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**12, 10**30, -(2**63), 1.5, 1e308),
    *(None, "", "x", True, [], {}, [10**9, 10**9], [-1, 7], [40, 0], float("nan"), "int8", "<U4", "|O", ">f4", "NaN"),
)
BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"PK\x03\x04", b"\x93NUMPY", b"PAR1")

type Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]


def _truncate(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _cut_the_tail(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content[: -rng.randint(1, 16)]


def _cut_the_head(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content[rng.randint(1, 16) :]


def _flip_bits(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    changed = bytearray(content)
    for _bit in range(rng.choice((1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_bytes(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    changed = bytearray(content)
    at, length = rng.randrange(len(changed)), rng.choice((1, 2, 4, 8))
    changed[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * length
    return bytes(changed)


def _splice(content: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    other, at = rng.choice(others), rng.randrange(len(content))
    start = rng.randrange(len(other))
    return content[:at] + other[start : start + rng.randint(1, 200)] + content[at + rng.choice((0, 0, 50)) :]


def _drop_a_piece(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + content[at + rng.randint(1, 100) :]


def _repeat_a_piece(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    at, length = rng.randrange(len(content)), rng.randint(1, 300)
    return content[: at + length] + content[at : at + length] * rng.choice((1, 2, 50)) + content[at + length :]


def _insert_nul_bytes(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + bytes(rng.choice((1, 7, 1000))) + content[at:]


def _prefix(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return rng.choice(BYTE_ORDER_MARKS) + content


def _append_noise(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content + rng.randbytes(rng.choice((1, 10, 1000)))


def _be_another_file(_: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    return rng.choice(others)


def _be_noise(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return rng.choice((b"", b"\n", b"\x00", bytes(100), rng.randbytes(500), content[:8] + rng.randbytes(500)))


def _end_lines_otherwise(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b" \n", b"\x0b", b"\xe2\x80\xa8")))


def _recode(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content.decode("latin-1").encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7")))


def _swap_delimiters(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content.replace(
        rng.choice((b",", b"\t", b" ", b":")), rng.choice((b";", b",", b"\t", b" ", b"|", b":", b""))
    )


def _shuffle_lines(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def _repeat_lines(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    return b"\n".join(lines[:at] + [lines[at]] * rng.choice((2, 3, 100)) + lines[at:])


def _change_a_width(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    fields = re.split(rb"([,\t ])", lines[at])
    lines[at] = b"".join(fields[:-2] if rng.random() < 0.5 else fields + fields[-2:])
    return b"\n".join(lines)


def _replace_tokens(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    found = list(re.finditer(rb"[^\s,:]+", content))
    for match in sorted(rng.sample(found, min(len(found), rng.choice((1, 1, 1, 5)))), key=lambda m: -m.start()):
        content = content[: match.start()] + rng.choice(TOKENS) + content[match.end() :]
    return content


def _replace_a_number(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    """Replace a number at the start of a file, usually by a huge one."""
    found = list(re.finditer(rb"\d+", content[:2000]))
    if not found:
        return content
    match = rng.choice(found)
    return content[: match.start()] + str(rng.choice(NUMBERS[:13])).encode() + content[match.end() :]


def _quote_a_token(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    """Put a token into quotes, possibly with a line break in it or with one quote too few."""
    found = list(re.finditer(rb"[^\s,:\"]+", content))
    if not found:
        return content + b'"'
    match = rng.choice(found)
    within = rng.choice((b"", b"\n", b"\r\n", b'""', b"\n7,7,7\n", b"\x00\n", b'"'))
    before, behind = rng.choice(((b'"', b'"'), (b'"', b""), (b"", b'"'), (b' "', b'"'), (b'"', b'" '), (b'"', b'"x')))
    return content[: match.start()] + before + match[0] + within + behind + content[match.end() :]


def _lengthen_a_line(content: bytes, rng: Random, _: Sequence[bytes]) -> bytes:
    return content.replace(b"\n", rng.choice((b" ", b"#", b",")) * rng.choice((10, 100_000)), rng.choice((1, 40)))


ANY: tuple[Mutation, ...] = (
    *(_truncate, _cut_the_tail, _cut_the_head, _flip_bits, _flip_bits, _set_bytes, _splice, _drop_a_piece),
    *(_repeat_a_piece, _insert_nul_bytes, _prefix, _append_noise, _be_another_file, _be_noise, _replace_a_number),
)
TEXT: tuple[Mutation, ...] = (
    *(_end_lines_otherwise, _recode, _swap_delimiters, _shuffle_lines, _repeat_lines, _change_a_width),
    *(_replace_tokens, _replace_tokens, _replace_tokens, _lengthen_a_line, _quote_a_token, _quote_a_token),
)


def mutate(content: bytes, rng: Random, others: Sequence[bytes], *, is_text: bool) -> bytes:
    """Apply one or two mutations, before or after compression if the content is compressed.

    Parameters
    ----------
    content : bytes
    rng : Random
    others : sequence of bytes
        Other files, from which pieces are taken.
    is_text : bool
        Whether the content consists of lines, compressed or not.
    """
    unpack, pack = _packing(content)
    if is_text and rng.random() < 0.7:
        text = unpack(content)
        for mutation in rng.choices(TEXT + ANY, k=rng.choice((1, 1, 1, 2))):
            text = mutation(text or b"\n", rng, others)
        return pack(text)
    for mutation in rng.choices(ANY, k=rng.choice((1, 1, 1, 2))):
        content = mutation(content or b"\n", rng, others)
    return content


def mutate_json(content: bytes, rng: Random) -> bytes:
    """Replace or remove a value somewhere in a JSON document."""
    document = json.loads(content)
    holders = _holders(document)
    holder = rng.choice(holders)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if isinstance(holder, dict) and rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = rng.choice(NUMBERS)
    return json.dumps(document).encode()


def _holders(value: Any) -> list[Any]:
    """Return every non-empty dict and list in a JSON value."""
    if not isinstance(value, dict | list) or not value:
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(holder for item in inner for holder in _holders(item))]


def _packing(content: bytes) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress, lambda text: gzip.compress(text, mtime=0)
    if content.startswith(b"\x28\xb5\x2f\xfd"):
        return (
            lambda packed: pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read(),
            lambda text: pa.compress(text, codec="zstd", asbytes=True),
        )
    return bytes, bytes


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
