"""Mutations of a file, each a function of its bytes and of a seeded random generator."""

import gzip
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pyarrow as pa

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
