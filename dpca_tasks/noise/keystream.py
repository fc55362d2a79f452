"""Secret keys, and the random words that they determine.

Word ``i`` of a stream is a function of the key, the number of the stream and ``i`` only: any process can compute any
range, in any order and repeatedly. The words are ChaCha20 (RFC 8439), so without the key they cannot be distinguished
from fair coin tosses. Keys for different purposes are derived from one secret by labelled HKDF (RFC 5869).

>>> key = subkey(bytes(32), label="noise", info=b"step 0")
>>> key
SecretKey(...)
>>> bool((words(key, stream=0, start=5, stop=9) == words(key, stream=0, start=0, stop=9)[5:]).all())
True
"""

import struct
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput

KEY_BYTES = 32
WORDS_PER_TILE = 1 << 14
"""The number of words under one nonce. It is part of the definition of a stream: another value gives other words."""

WORDS_PER_BLOCK = 8
_ZEROS = bytes(8 * WORDS_PER_TILE)


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """A ChaCha20 key that pickles as usual and whose repr is blank."""

    secret: bytes

    def __post_init__(self) -> None:
        """Check the length."""
        if len(self.secret) != KEY_BYTES:
            raise InvalidInput(f"a key of {len(self.secret)} bytes must have {KEY_BYTES}; derive it with subkey(...)")

    def __repr__(self) -> str:
        """Show the type and nothing else."""
        return "SecretKey(...)"


def subkey(key: bytes, *, label: str, info: bytes) -> SecretKey:
    """Derive the key for one purpose.

    Parameters
    ----------
    key : bytes of length 32
        The secret of a release.
    label : str
        The purpose, such as ``"noise"`` or ``"coins"``.
    info : bytes
        The object of the purpose, such as the digest of everything that determines the answer.

    Returns
    -------
    SecretKey
        Equal exactly when all three arguments are equal (the label is length-prefixed, so ``("a", b"bc")``
        and ``("ab", b"c")`` differ), and otherwise unrelated.
    """
    name = label.encode()
    context = struct.pack("<I", len(name)) + name + info
    return SecretKey(HKDF(SHA256(), KEY_BYTES, salt=None, info=context).derive(SecretKey(key).secret))


def words(key: SecretKey, *, stream: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Return words ``start`` to ``stop - 1`` of one stream of a key.

    Parameters
    ----------
    key : SecretKey
    stream : int
        The number of one of the key's independent streams, ``0 .. 2**32 - 1``.
    start, stop : int
        The range, ``0 <= start <= stop``.

    Returns
    -------
    ndarray of uint64 of shape (stop - start,)

    Raises
    ------
    InvalidInput
        If the range is invalid.

    Notes
    -----
    Tile ``t`` holds words ``t * WORDS_PER_TILE`` onwards. Its nonce is the stream in 4 bytes and ``t`` in 8,
    both little-endian; the block counter starts at 0 and stays below 2**11, so no two tiles share a block.
    """
    if not 0 <= start <= stop:
        raise InvalidInput(f"the range {start}:{stop} must satisfy 0 <= start <= stop; pass such a range")
    lead = start % WORDS_PER_BLOCK
    made = np.empty(lead + stop - start, np.dtype("<u8"))
    room = memoryview(made).cast("B")
    at = start - lead
    while at < stop:
        tile, first = divmod(at, WORDS_PER_TILE)
        count = min(WORDS_PER_TILE - first, stop - at)
        nonce = struct.pack("<IIQ", first // WORDS_PER_BLOCK, stream, tile)
        cipher = Cipher(algorithms.ChaCha20(key.secret, nonce), mode=None).encryptor()
        cipher.update_into(memoryview(_ZEROS)[: 8 * count], room[: 8 * count])
        room = room[8 * count :]
        at += count
    return made[lead:].astype(np.uint64, copy=False)
