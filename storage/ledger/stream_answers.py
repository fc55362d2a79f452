"""The store of a stream's answers: copies of what its ticks released, on which every later estimate is made.

An answer cannot be made again, because its key is erased. So it is copied here before its release is committed, as the
packed integers that left the curator: 8 bytes a coordinate. It is noised already, and may be published; a copy of this
folder is a backup. A tick whose answer is lost counts as closed in the estimates.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from storage.backends.base import Place, write_and_check
from storage.backends.crash_points import reached
from storage.errors import Corrupt
from storage.ledger.stream_rows import Tick

FOLDER = "streams"

_NAME = re.compile(r"([0-9]{6})-([0-9a-f]{64})\.npy")


def keep_answer(place: Place, tick: Tick, answer: NDArray[np.int64]) -> str:
    """Copy the answer of a tick durably; return the digest of the file."""
    buffer = io.BytesIO()
    np.save(buffer, answer, allow_pickle=False)
    payload = buffer.getvalue()
    digest = hashlib.sha256(payload).hexdigest()
    write_and_check(place, answer_path(tick.stream, tick.tick, digest), payload)
    reached("answer.file_written")
    return digest


def kept_answers(place: Place, stream_id: str) -> dict[int, set[str]]:
    """Return the digests in a stream's store by tick, whatever the ledger says of them."""
    found: dict[int, set[str]] = {}
    for name in place.names(f"{FOLDER}/{stream_id}"):
        if matched := _NAME.fullmatch(name):
            found.setdefault(int(matched[1]), set()).add(matched[2])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Mapping[int, NDArray[np.int64]]):
    """The answers of ticks that have one in the store, by tick; each is read when it is asked for, and not held.

    Parameters
    ----------
    place : Place
    ticks : sequence of Tick
        A tick without a digest, or without its file, has no answer.
    """

    place: Place
    ticks: tuple[Tick, ...]
    _digests: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """List the store once."""
        held = kept_answers(self.place, self.ticks[0].stream) if self.ticks else {}
        found = {
            tick.tick: tick.answer
            for tick in self.ticks
            if tick.answer is not None and tick.answer in held.get(tick.tick, ())
        }
        object.__setattr__(self, "_digests", found)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ticks that have an answer, oldest first."""
        return iter(sorted(self._digests))

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self._digests)

    def __getitem__(self, tick: int) -> NDArray[np.int64]:
        """Read an answer.

        Raises
        ------
        Corrupt
            When the file is not the one that was copied.
        """
        path = answer_path(self.ticks[0].stream, tick, self._digests[tick])
        payload = self.place.read(path).payload
        if hashlib.sha256(payload).hexdigest() != self._digests[tick]:
            raise Corrupt(
                f"{self.place.at(path)} is not the answer of tick {tick} that was kept; restore it from a copy, or "
                "remove it to estimate without that tick."
            )
        answer: NDArray[np.int64] = np.load(io.BytesIO(payload), allow_pickle=False)
        return answer


def answer_path(stream_id: str, tick: int, digest: str) -> str:
    """Return the path of the answer of a tick in a place."""
    return f"{FOLDER}/{stream_id}/{tick:06d}-{digest}.npy"
