"""HTTPS client for calls between parties, and the message format of JSON and arrays, called a frame.

A call uses HTTPS with certificates on both sides, has a timeout, and accepts an answer of bounded length.

A frame holds JSON and arrays, but no pickled objects, and is decoded strictly. It consists of ``DPCA1``, the length of
its head in four bytes, the head, and the bytes of its arrays one after the other. The head is a JSON object of the
frame's facts; its member ``arrays`` states name, type and shape of each array. For a matrix with few nonzero rows, only
the numbers of these rows and the rows themselves are sent.

>>> frame = encode({"round": 3}, {"directions": np.eye(3, dtype=np.int64)})
>>> decode(frame, most=72).facts, decode(frame, most=72).arrays["directions"].tolist()[0]
({'round': 3}, [1, 0, 0])

"""

import json
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import canonical_json
from dpca.errors import BudgetExhausted
from dpca_tasks.errors import InvalidInput, Refused, SiteSilent
from flows.parties.certificates import calling_context, fingerprint_of

MAGIC = b"DPCA1"
LONGEST_HEAD = 1 << 16
OVERHEAD = len(MAGIC) + 4 + LONGEST_HEAD
"""Maximal bytes of a frame without its arrays."""
FRAME = "application/x-dpca-frame"

CARRIED = "frame"
"""Name of the frame's array that holds a message in another format, as bytes."""

_TYPES = {"<i8": np.dtype("<i8"), "<u8": np.dtype("<u8"), "<f8": np.dtype("<f8")}
_PLACES = np.dtype("<u4")
_ENTRY = {"name", "type", "shape", "rows"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoded frame."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)

    def fact[T](self, name: str, kind: type[T]) -> T:
        """Return a fact of the given type.

        Raises
        ------
        Refused
            When the fact is missing, or of another type.
        """
        value = self.facts.get(name)
        if type(value) is not kind:
            raise Refused(f"a message lacks {name}, or its format differs from the plan; no answer was sent.")
        return value


def encode(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Encode facts and arrays as the bytes of a frame."""
    entries, parts = [], []
    for name, array in (arrays or {}).items():
        kind = array.dtype.newbyteorder("<").str
        if kind not in _TYPES:
            raise Refused(f"arrays of type {array.dtype} cannot be sent; convert them to 8 bytes per number.")
        plain = np.ascontiguousarray(array, _TYPES[kind])
        places = _nonzero_rows(plain)
        if places is not None:
            parts += [places.tobytes(), plain[places].tobytes()]
        else:
            parts.append(plain.tobytes())
        rows = None if places is None else len(places)
        entries.append({"name": name, "type": kind, "shape": list(array.shape), "rows": rows})
    head = canonical_json({**facts, **({"arrays": entries} if entries else {})})
    if len(head) > LONGEST_HEAD:
        raise Refused(
            f"the head of a message has {len(head)} bytes, and at most {LONGEST_HEAD} are read; request less."
        )
    return b"".join([MAGIC, len(head).to_bytes(4, "big"), head, *parts])


def decode(payload: bytes, *, most: int) -> Frame:
    """Decode a frame.

    Parameters
    ----------
    payload : bytes
    most : int
        Largest accepted number of bytes of the decoded arrays; 0 if no array is planned.

    Raises
    ------
    Refused
        When the frame is truncated, too long, or not in the form that `encode` produces. The error message contains
        nothing of the frame.
    """
    start = len(MAGIC) + 4
    if payload[: len(MAGIC)] != MAGIC or len(payload) < start:
        raise _malformed()
    length = int.from_bytes(payload[len(MAGIC) : start], "big")
    if length > LONGEST_HEAD or len(payload) < start + length:
        raise _malformed()
    try:
        head = json.loads(payload[start : start + length])
    except (ValueError, RecursionError):
        raise _malformed() from None
    if not isinstance(head, dict):
        raise _malformed()
    entries = head.pop("arrays", [])
    if not isinstance(entries, list):
        raise _malformed()
    arrays, at, size = {}, start + length, 0
    for entry in entries:
        name, kind, shape, rows = _form(entry)
        size += math.prod(shape) * kind.itemsize
        if name in arrays or size > most:
            raise _malformed()
        sent = math.prod(shape) if rows is None else rows * shape[1]
        extra = 0 if rows is None else rows * _PLACES.itemsize
        stop = at + extra + sent * kind.itemsize
        if stop > len(payload):
            raise _malformed()
        values = np.frombuffer(
            payload, kind, count=sent, offset=at + extra
        ).copy()  # a copy in aligned memory, as BLAS needs
        if rows is None:
            arrays[name] = values.reshape(shape)
        else:
            arrays[name] = _spread(np.frombuffer(payload, _PLACES, count=rows, offset=at), values, shape)
        at = stop
    if at != len(payload):
        raise _malformed()
    return Frame(facts=head, arrays=arrays)


def packed(raw: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and the array of a frame that carries the bytes of a message in another format."""
    return {"length": len(raw)}, {CARRIED: np.frombuffer(raw + bytes(-len(raw) % 8), "<u8")}


def unpacked(frame: Frame) -> bytes:
    """Return the bytes that `packed` put into a frame.

    Raises
    ------
    Refused
        When the frame does not carry such bytes.
    """
    words, length = frame.arrays.get(CARRIED), frame.fact("length", int)
    if (
        words is None
        or words.dtype != np.uint64
        or words.ndim != 1
        or length < 0
        or not 0 <= 8 * words.size - length < 8
    ):
        raise Refused("a message has an incomplete frame, or a frame of another format; no answer was sent.")
    return words.tobytes()[:length]


def _form(entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int | None]:
    if not isinstance(entry, dict) or set(entry) != _ENTRY:
        raise _malformed()
    name, kind, shape, rows = (entry[key] for key in ("name", "type", "shape", "rows"))
    is_shape = isinstance(shape, list) and len(shape) <= 3 and all(type(n) is int and 0 <= n < 2**31 for n in shape)
    if not (isinstance(name, str) and isinstance(kind, str) and kind in _TYPES and is_shape):
        raise _malformed()
    if rows is not None and not (type(rows) is int and len(shape) == 2 and 0 <= rows <= shape[0]):
        raise _malformed()
    return name, _TYPES[kind], tuple(shape), rows


def _nonzero_rows(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return the numbers of the nonzero rows of an integer matrix; None if sending only these rows is not shorter."""
    if array.ndim != 2 or array.dtype.kind == "f":
        return None
    places = np.flatnonzero(array.any(axis=1)).astype(_PLACES)
    return places if len(places) * (8 * array.shape[1] + 4) < array.nbytes else None


def _spread(places: NDArray[Any], values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if len(places) and (int(places[-1]) >= shape[0] or np.any(np.diff(places.astype(np.int64)) <= 0)):
        raise _malformed()
    whole = np.zeros(shape, values.dtype)
    whole[places] = values.reshape(len(places), shape[1])
    return whole


def _malformed() -> Refused:
    return Refused(
        "a message is incomplete, too long or malformed, and only planned messages are read; no answer was sent."
    )


REFUSED_BY_BUDGET, REFUSED, UNUSABLE = 402, 409, 503
"""HTTP status codes of refusals: the budget is exhausted, another rule refuses, or the storage cannot be used."""
REFUSALS = (REFUSED_BY_BUDGET, REFUSED, UNUSABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One party, with its name, its certificate in PEM, and its address, which is None for the aggregator."""

    name: str
    address: str | None
    certificate: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 digest of the certificate."""
        return fingerprint_of(self.certificate)


class Caller:
    """Client for calls to one party.

    Parameters
    ----------
    post : Post
        The called party, with its address and the certificate that it must show.
    certificate, key : Path
        The certificate that this process shows, and its key.
    timeout : float, seconds
        Time after which a party counts as not answering.
    """

    def __init__(self, post: Post, *, certificate: Path, key: Path, timeout: float) -> None:
        if post.address is None:
            raise InvalidInput(
                f"{post.name} has no address, and only parties with an address can be called; add the address to the "
                "roster file."
            )
        self.name = post.name
        self.sent = self.received = 0  # bytes
        context = calling_context(certificate=certificate, key=key, peer=post.certificate)
        self._client = httpx.Client(
            base_url=post.address, verify=context, timeout=timeout, trust_env=False, follow_redirects=False
        )

    def close(self) -> None:
        """Close the connections of this client."""
        self._client.close()

    def call(
        self,
        path: str,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        most: int = 0,
    ) -> Frame:
        """Send a frame and return the answer; ``most`` bounds the bytes of the answer's arrays.

        Raises
        ------
        SiteSilent
            When the party does not answer in time, or its answer is not valid.
        Refused
            When the party refuses, or one side does not accept the other's certificate. The error is `BudgetExhausted`
            if the party's budget refuses.
        """
        status, body = self.send(path, encode(facts, arrays), media=FRAME, most=OVERHEAD + most)
        if status == 200:
            return decode(body, most=most)
        if status in (REFUSED_BY_BUDGET, REFUSED):
            line = f"{self.name}: {decode(body, most=0).fact('line', str)}"
            raise BudgetExhausted(line) if status == REFUSED_BY_BUDGET else Refused(line)
        raise SiteSilent(f"{self.name} could not answer; its log states the reason.")

    def send(self, path: str, content: bytes, *, media: str, most: int) -> tuple[int, bytes]:
        """Send a request; return the status code and content of the answer, which has at most ``most`` bytes.

        Raises
        ------
        SiteSilent
            When the party does not answer in time.
        Refused
            When one side does not accept the other's certificate, or the answer is longer than ``most`` bytes.
        """
        self.sent += len(content)
        try:
            with self._client.stream("POST", path, content=content, headers={"content-type": media}) as answer:
                status, body = answer.status_code, self._read(answer, most=most)
        except httpx.HTTPError as error:
            if _is_about_certificates(error):
                raise Refused(
                    f"{self.name} and this process do not accept each other's certificates; each must use the "
                    "certificate that the other's roster file lists, before this certificate expires."
                ) from None
            raise SiteSilent(
                f"{self.name} did not answer, or does not accept this certificate; retry when it is available, or "
                "compare the roster files of both."
            ) from None
        self.received += len(body)
        return status, body

    def _read(self, answer: httpx.Response, *, most: int) -> bytes:
        parts, size = [], 0
        for part in answer.iter_raw():  # refuse compressed answers, because their unpacked size is unknown
            size += len(part)
            if size > most:
                raise Refused(f"{self.name} answered with more bytes than planned; the answer was discarded.")
            parts.append(part)
        return b"".join(parts)


def _is_about_certificates(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError) or "alert" in str(seen).lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False
