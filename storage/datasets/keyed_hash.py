"""Keyed hashes of ids, which a snapshot stores in place of the ids.

The hash is SipHash-2-4 with 128 bits, a keyed hash for short texts. Without the secret key, it reveals nothing about an
id. It is implemented here in Numba for speed: a million ids take a twentieth of a second, while calling a library's
hash function for each text would take as long as the whole ingest.

Each population has one key, which is a file in the key folder. With a copy of the rows but without the key, a guess of
an id cannot be tested. Backups never contain the key. If the key is lost, `storage.datasets.erase` cannot find an
individual in the snapshots made with it.

References
----------
J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012; the 128-bit version follows the
authors' reference implementation.

>>> key = bytes(range(16))
>>> keyed_hashes(pa.array([""]), key=key).astype("<u8").tobytes().hex()
'a3817f04ba25a8e66df67214c7550293'
"""

import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from numba import njit, uint64
from numpy.typing import NDArray

from dpca.backends.atomic_files import claim_file, make_folder, writing
from dpca.errors import Conflict, NotFound, StorageError, Unavailable

KEY_BYTES = 16


def keyed_hashes(ids: pa.Array, *, key: bytes) -> NDArray[np.uint64]:
    """Hash the text of each id with a secret key; an integer is hashed as its decimal text.

    Parameters
    ----------
    ids : Arrow array of integers or strings, without nulls
    key : bytes, 16 random bytes

    Returns
    -------
    uint64 array of shape (len(ids), 2)
    """
    texts = ids.cast(pa.large_string())
    _, offsets, text = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[texts.offset :][: len(texts) + 1]
    letters = np.empty(0, np.uint8) if text is None else np.frombuffer(text, dtype=np.uint8)
    return np.asarray(_siphash(letters, bounds, np.frombuffer(key, dtype="<u8").astype(np.uint64)))


@njit(cache=True, nogil=True)
def _siphash(letters, bounds, key):  # type: ignore[no-untyped-def]
    hashes = np.empty((len(bounds) - 1, 2), np.uint64)
    for each in range(len(hashes)):
        start, stop = bounds[each], bounds[each + 1]
        state = (
            key[0] ^ uint64(0x736F6D6570736575),
            key[1] ^ uint64(0x646F72616E646F6D) ^ uint64(0xEE),
            key[0] ^ uint64(0x6C7967656E657261),
            key[1] ^ uint64(0x7465646279746573),
        )
        for at in range(start, stop + 1, 8):
            word = uint64(0)
            for letter in range(at, min(at + 8, stop)):
                word |= uint64(letters[letter]) << uint64(8 * (letter - at))
            if at + 8 > stop:  # the last 64-bit word of SipHash also contains the length of the text
                word |= uint64((stop - start) & 0xFF) << uint64(56)
            a, b, c, d = state
            a, b, c, d = _round(_round((a, b, c, d ^ word)))
            state = (a ^ word, b, c, d)
        a, b, c, d = state
        state = _round(_round(_round(_round((a, b, c ^ uint64(0xEE), d)))))
        hashes[each, 0] = state[0] ^ state[1] ^ state[2] ^ state[3]
        a, b, c, d = state
        state = _round(_round(_round(_round((a, b ^ uint64(0xDD), c, d)))))
        hashes[each, 1] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashes


@njit(cache=True, nogil=True)
def _round(state):  # type: ignore[no-untyped-def]
    a, b, c, d = state
    a += b
    c += d
    b = _rotated(b, 13) ^ a
    d = _rotated(d, 16) ^ c
    a = _rotated(a, 32)
    c += b
    a += d
    b = _rotated(b, 17) ^ c
    d = _rotated(d, 21) ^ a
    c = _rotated(c, 32)
    return a, b, c, d


@njit(cache=True, nogil=True)
def _rotated(word, bits):  # type: ignore[no-untyped-def]
    return (word << uint64(bits)) | (word >> uint64(64 - bits))


class OwnerKey:
    """Secret key for the hashes of a population's ids, drawn at random when an ingest first needs it.

    Parameters
    ----------
    keys : Path
        The folder of secret keys.
    population : str, the name of the population

    Attributes
    ----------
    name : str or None
        The public name of the key, which is derived from the key irreversibly; None until the key is used.
    """

    def __init__(self, keys: Path, population: str) -> None:
        self._path = keys / f"owners-{population}"
        self._key, self._is_ours = b"", False
        self.name: str | None = None

    def drawn(self) -> bytes:
        """Return the key; if no key is stored, first draw and store one.

        Raises
        ------
        Unavailable
            If the key folder cannot be written.
        """
        if self.name is None:
            with writing(self._path.parent):
                make_folder(self._path.parent)
                self._is_ours = claim_file(self._path, os.urandom(KEY_BYTES))
                self._key = self._path.read_bytes()
            self.name = _name_of(self._key)
        return self._key

    def keep(self) -> None:
        """Ensure at the end of an ingest that the key is still stored, if the ingest used it.

        Raises
        ------
        Conflict
            If another key has been stored in the meantime.
        Unavailable
            If the key folder cannot be written.
        """
        if self.name is not None:
            with writing(self._path.parent):  # the ingest that created the key may have failed since, and removed it
                if not claim_file(self._path, self._key) and self._path.read_bytes() != self._key:
                    raise Conflict(
                        "another ingest of the same population replaced the key with which ids are hashed; ingest again"
                    )

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Context of an ingest: if it fails, remove a key that it drew, unless it may be resumed from its blocks."""
        try:
            yield
        except Unavailable:  # the key is not removed, because the ingest can be resumed from the blocks written so far
            raise
        except StorageError:
            if self._is_ours:
                self._path.unlink(missing_ok=True)
            raise

    def named(self, name: str) -> bytes:
        """Return the stored key, after checking that the name derived from the key is this name.

        Raises
        ------
        NotFound
            If the key file is missing or contains another key.
        """
        try:
            key = self._path.read_bytes()
        except FileNotFoundError:
            key = b""
        if _name_of(key) != name:
            raise NotFound(
                f"the key of the snapshot's ids, {self._path}, is lost, so no id can be found; remove the rows from "
                "the source and ingest it again, then remove the older snapshots"
            )
        return key


def _name_of(key: bytes) -> str:
    return hmac.new(key, b"dpca owners", hashlib.sha256).hexdigest()[:32]
