"""The file of a witness: two copies of a journal's head, of which the older is written over.

Each copy fills a page of the file and ends with its checksum, and one sync of a file that exists already makes it
durable. A write that a crash cut short leaves the other copy, which is the event before: the journal is then one event
ahead of its witness, as it is between any commit and the write that follows it.

>>> first, second = (Head(ledger="a", seq=seq, hash=str(seq)) for seq in (1, 2))
>>> payload = encode(first)
>>> decode(payload) == first
True
>>> decode(payload[:_PAGE] + _copy_of(second)) == second
True
"""

import errno
import json
import os
from dataclasses import asdict
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from storage.backends.crash_points import reached
from storage.ledger.journal import Head

_PAGE = 4096
"""Bytes that a disk writes whole, or leaves damaged, without harm to the next ones."""


def encode(head: Head) -> bytes:
    """Write a new file, both of whose copies are of one head."""
    return 2 * _copy_of(head)


def decode(payload: bytes) -> Head:
    """Return the newer sound copy.

    Raises
    ------
    TypeError, ValueError
        When none is sound.
    """
    if len(payload) != 2 * _PAGE:
        raise ValueError("the file has not the length of two copies")
    sound = [head for head in _copies(payload) if head is not None]
    if not sound:
        raise ValueError("both copies are damaged")
    return max(sound, key=lambda head: head.seq)


def write_next(path: Path, head: Head, *, over: bytes) -> None:
    """Write a newer head durably, over the older or damaged copy of a file that holds ``over``.

    The caller holds the writers' lock.
    """
    first, second = _copies(over)
    is_first = first is None or (second is not None and first.seq <= second.seq)
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if os.pwrite(descriptor, _copy_of(head), 0 if is_first else _PAGE) != _PAGE:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    reached("witness.synced")


def _copy_of(head: Head) -> bytes:
    text = json.dumps(asdict(head)).encode()
    return b"%s %s" % (text, sha256(text).hexdigest().encode()) + b"\n".rjust(_PAGE - len(text) - 65)


def _copies(payload: bytes) -> tuple[Head | None, Head | None]:
    return _sound(payload[:_PAGE]), _sound(payload[_PAGE:])


@lru_cache(maxsize=16)  # a release reads both witnesses some thirty times, mostly as they were
def _sound(copy: bytes) -> Head | None:
    text, _, checksum = copy.rstrip().rpartition(b" ")
    return Head(**json.loads(text)) if sha256(text).hexdigest().encode() == checksum else None
