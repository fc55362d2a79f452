"""Guessing attack: test a guess of the whole dataset against everything that leaves a home.

The attacker has all rows but the last, a list of candidates for the last row, and the program. As a margin of safety,
the attacker also has every noised answer with its public inputs, and every request except the rows. This is more than a
publication contains. For each candidate, the attacker computes its content digest and every digest that a program of
this kind could have stored, and searches the published content for them.

Canaries are values of private data that can be recognized in text, in bytes and in numbers.
"""

import hashlib
import io
import itertools
import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.privacy import request
from dpca_tasks.privacy.gate import APPLIED, DIGEST, TILED
from storage.datasets import snapshot_reader
from storage.datasets.content_digest import ContentDigest
from storage.ledger.step_answers import StepStore

INSIDE = ("dpca.sqlite", "keys", "staging", "datasets", "arrivals", "scratch", "sources")
"""Path prefixes inside a home that never leave the trust boundary; all other content is searched."""
CLIP_NORM = 2.0
MARKS = (b"", APPLIED, TILED)

hash_request = request.hash_request


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the attacker has: the arrays of every stored step, and the arguments of every request digest."""

    steps: list[Mapping[str, NDArray[Any]]] = field(default_factory=list)
    requested: dict[bytes, tuple[Any, ...]] = field(default_factory=dict)


@contextmanager
def recording() -> Iterator[Recorded]:
    """Record all steps and requests of the releases made in the context."""
    found, keep = Recorded(), StepStore.keep

    def kept(store: StepStore, step: int, arrays: Mapping[str, NDArray[Any]]) -> Any:
        found.steps.append(dict(arrays))
        return keep(store, step, arrays)

    def hashed(content: str, *requested: Any, bound_to: bytes = b"") -> bytes:
        digest = hash_request(content, *requested, bound_to=bound_to)
        found.requested[digest] = (*requested, bound_to)
        return digest

    with patch.object(StepStore, "keep", kept), patch.object(request, "hash_request", hashed):
        yield found


def content_of(rows: NDArray[np.float64]) -> str:
    """Return the content digest of a table in which each row is a record."""
    stored, digest = sparse.csr_array(rows), ContentDigest(n_features=rows.shape[1])
    digest.update(
        values=stored.data,
        indices=stored.indices,
        row_nnz=np.diff(stored.indptr),
        record_rows=np.ones(len(rows), np.int64),
    )
    return digest.hexdigest()


def plain_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the plain SHA-256 of a step's file; a planted leak writes it to the journal."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(sorted(arrays.items())))
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def guesses(content: str, recorded: Recorded) -> Iterator[bytes]:
    """Yield each digest that depends on the content of a candidate dataset, as bytes and in hex."""
    night = hashlib.sha256(snapshot_reader._LABEL + f"1 {content}\n".encode()).hexdigest()
    normalised = hashlib.sha256(f"normalised to {CLIP_NORM.hex()}: {content}".encode()).hexdigest()
    for form in (content, night, normalised):
        yield from _written(bytes.fromhex(form))
        yield from _written(hashlib.sha256(bytes.fromhex(form)).digest())
        for arrays, (digest, requested) in itertools.product(recorded.steps, recorded.requested.items()):
            if bytes(arrays[DIGEST]).startswith(digest):
                again = hash_request(form, *requested[:-1], bound_to=requested[-1])
                for mark in MARKS:
                    yield from _of_step(arrays, again + mark)


def _of_step(arrays: Mapping[str, NDArray[Any]], question: bytes) -> Iterator[bytes]:
    """Yield the digests of a step under a request digest: of the request, of the file, and of each array with it."""
    yield from _written(question)
    yield from _written(hashlib.sha256(question).digest())
    yield from _written(bytes.fromhex(plain_digest({**arrays, DIGEST: np.frombuffer(question, np.uint8)})))
    for array in arrays.values():
        yield from _written(hashlib.sha256(array.tobytes() + question).digest())
        yield from _written(hashlib.sha256(question + array.tobytes()).digest())


def _written(digest: bytes) -> Iterator[bytes]:
    yield digest
    yield digest.hex().encode()


def all_that_left(home: Path, *more: bytes) -> bytes:
    """Return everything that leaves a home as bytes: journal, all files outside the trust boundary, and their paths."""
    with sqlite3.connect(home / "dpca.sqlite") as connection:
        pieces = [json.dumps(row).encode() for row in connection.execute("SELECT * FROM event")]
    connection.close()
    for folder in (home, home.with_name(f"{home.name}-state")):
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder).as_posix()
            if path.is_file() and not relative.startswith(INSIDE):
                pieces += [relative.encode(), path.read_bytes()]
    return b"\n".join([*pieces, *more])


def distinguished(left: bytes, candidates: Sequence[str], recorded: Recorded) -> list[int]:
    """Return the numbers of the candidates for which a digest occurs in the published content ``left``."""
    return [
        number
        for number, content in enumerate(candidates)
        if any(guess in left for guess in guesses(content, recorded))
    ]


RECORD = (0.7390851332151607, 0.5671432904097838, 0.9159655941772190, 0.6180339887498949)
"""The values of the canary record, in its first columns."""

SMALLEST_TOTAL = 10**7  # smaller integer totals occur by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """Byte patterns and numbers that no leftover may contain."""

    pattern: re.Pattern[bytes]
    numbers: frozenset[int | float]

    def found_in(self, piece: bytes | int | float) -> list[str]:
        """Return the canary values that occur in a piece of content."""
        if isinstance(piece, bytes):
            return [repr(match) for match in set(self.pattern.findall(piece))]
        near = [number for number in self.numbers if math.isclose(piece, number, rel_tol=1e-9)]
        return [repr(number) for number in near]


def canaries_of(values: Iterable[float], totals: Iterable[int] = ()) -> Canaries:
    """Build the patterns of floating-point values and of integer totals, in all binary and decimal forms."""
    floats = np.array([*values], np.float64)
    wholes = np.array([total for total in totals if abs(total) >= SMALLEST_TOTAL], np.int64)
    words = [*map(_decimal, floats.tolist()), *map(_whole, wholes.tolist())]
    for order in "<>":
        words += _cut(floats.astype(f"{order}f8"), 1)
        words += _cut(wholes.astype(f"{order}f8"), 1)
        words += _cut(wholes.astype(f"{order}i8"), 1)
        # in single precision, four bytes match by chance; the bytes of two neighboring values do not
        words += _cut(floats.astype(f"{order}f4"), 2)
        words += _cut(wholes.astype(f"{order}f4"), 2)
    numbers = frozenset([*floats.tolist(), *wholes.tolist()])
    return Canaries(pattern=re.compile(b"|".join(words), re.DOTALL), numbers=numbers)


def _cut(numbers: NDArray[Any], length: int) -> list[bytes]:
    return [re.escape(numbers[at : at + length].tobytes()) for at in range(len(numbers) - length + 1)]


def _decimal(value: float) -> bytes:
    """Return a pattern that matches a value in any printed form with 8 or more digits after the point."""
    whole, point, digits = f"{abs(value):.17f}".partition(".")
    rounded = f"{abs(value):.8f}".partition(".")[2]
    printed = b"|".join(re.escape((point + text).encode()) for text in sorted({digits[:8], rounded}))
    exponent = re.escape(f"{abs(value):.8e}"[:9].encode())
    return b"(?:" + (re.escape(whole.lstrip("0").encode()) + b"(?:" + printed + b")") + b"|" + exponent + b"[0-9]*e)"


def _whole(total: int) -> bytes:
    return b"(?<![0-9a-fA-F])" + str(abs(total)).encode() + b"(?![0-9a-fA-F])"
