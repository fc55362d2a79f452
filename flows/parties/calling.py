"""Calls of one party to another, and the frames in which arrays and JSON travel.

Frames: what travels between the parties, JSON and arrays, decoded strictly. No object of a program is in them.

A frame is ``DPCA1``, the length of its head in four bytes, the head, and the bytes of its arrays one after the other.
The head is a JSON object of the frame's facts; under ``arrays`` it states name, type and shape of each array. Of a
matrix with few nonzero rows only these are sent, after their places.

>>> frame = encode({"round": 3}, {"directions": np.eye(3, dtype=np.int64)})
>>> decode(frame, most=72).facts, decode(frame, most=72).arrays["directions"].tolist()[0]
({'round': 3}, [1, 0, 0])

Calls of one party to another: HTTPS with mutual certificates, a stated time, and an answer of a bounded length.

A caller for a service whose refusals have other types overrides `Caller.refuse`.
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
"""The most bytes of a frame beside its arrays."""

CARRIED = "frame"
"""The name of the array of bytes of another form."""

_TYPES = {"<i8": np.dtype("<i8"), "<u8": np.dtype("<u8"), "<f8": np.dtype("<f8")}
_PLACES = np.dtype("<u4")
_ENTRY = {"name", "type", "shape", "rows"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoded frame."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)

    def fact[T](self, name: str, kind: type[T]) -> T:
        """Return a fact of a type.

        Raises
        ------
        Refused
            When it is missing, or of another type.
        """
        value = self.facts.get(name)
        if type(value) is not kind:
            raise Refused(f"a message lacks {name}, or has it in another form than planned; nothing was answered.")
        return value


def encode(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Return the bytes of a frame."""
    entries, parts = [], []
    for name, array in (arrays or {}).items():
        kind = array.dtype.newbyteorder("<").str
        if kind not in _TYPES:
            raise Refused(f"arrays of type {array.dtype} are not sent; convert it to 8 bytes a number.")
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
            f"the head of a message has {len(head)} bytes, and at most {LONGEST_HEAD} are read; ask for less."
        )
    return b"".join([MAGIC, len(head).to_bytes(4, "big"), head, *parts])


def decode(payload: bytes, *, most: int) -> Frame:
    """Decode a frame, or refuse it whole.

    Parameters
    ----------
    payload : bytes
    most : int
        The most bytes that its arrays may have once they are decoded; 0 where none is planned.

    Raises
    ------
    Refused
        When it is cut, too long, or not as `encode` makes it; the message tells nothing of its content.
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
        values = np.frombuffer(payload, kind, count=sent, offset=at + extra).copy()  # aligned, for BLAS
        if rows is None:
            arrays[name] = values.reshape(shape)
        else:
            arrays[name] = _spread(np.frombuffer(payload, _PLACES, count=rows, offset=at), values, shape)
        at = stop
    if at != len(payload):
        raise _malformed()
    return Frame(facts=head, arrays=arrays)


def packed(raw: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and the array as which bytes of another form travel in a frame."""
    return {"length": len(raw)}, {CARRIED: np.frombuffer(raw + bytes(-len(raw) % 8), "<u8")}


def unpacked(frame: Frame) -> bytes:
    """Return the bytes of another form that a frame carries.

    Raises
    ------
    Refused
        When it carries none.
    """
    words, length = frame.arrays.get(CARRIED), frame.fact("length", int)
    if (
        words is None
        or words.dtype != np.uint64
        or words.ndim != 1
        or length < 0
        or not 0 <= 8 * words.size - length < 8
    ):
        raise Refused("a message carries no frame of another form, or a cut one; nothing was answered.")
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
    """Return the places of the nonzero rows of a matrix, where sending these alone is shorter."""
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
    return Refused("a message is cut, too long or malformed, and only planned ones are read; nothing was answered.")


REFUSED_BY_BUDGET, REFUSED, UNUSABLE = 402, 409, 503
"""The status of an answer that refuses: for the budget, for any other rule, and for a place that cannot be used."""
REFUSALS = (REFUSED_BY_BUDGET, REFUSED, UNUSABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One party: its name, where it listens (nowhere: the aggregator), and its certificate in PEM."""

    name: str
    address: str | None
    certificate: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of the certificate."""
        return fingerprint_of(self.certificate)


class Caller:
    """What calls one party.

    Parameters
    ----------
    post : Post
        The party that is called: its address, and the certificate that it must show.
    certificate, key : Path
        What this process shows.
    timeout : float, seconds
        After which a party counts as silent.
    """

    def __init__(self, post: Post, *, certificate: Path, key: Path, timeout: float) -> None:
        if post.address is None:
            raise InvalidInput(f"{post.name} has no address, and only parties with one are called; name it.")
        self.name = post.name
        self.sent = self.received = 0  # bytes
        context = calling_context(certificate=certificate, key=key, peer=post.certificate)
        self._client = httpx.Client(
            base_url=post.address, verify=context, timeout=timeout, trust_env=False, follow_redirects=False
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def ask(
        self,
        path: str,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        most: int = 0,
    ) -> Frame:
        """Send a frame, and return the answer, whose arrays have so many bytes at most.

        Raises
        ------
        SiteSilent
            When the party does not answer in time, or not as it should.
        Refused
            When it refuses, or shows another certificate than its own; `BudgetExhausted` for its budget.
        """
        payload = encode(facts, arrays)
        self.sent += len(payload)
        try:
            with self._client.stream("POST", path, content=payload) as answer:
                status, body = answer.status_code, self._read(answer, most=OVERHEAD + most)
        except httpx.HTTPError as error:
            if _is_about_certificates(error):
                raise Refused(
                    f"{self.name} and this process do not accept each other's certificates; each must show the one "
                    "that the other was given, before it expires."
                ) from None
            raise SiteSilent(
                f"{self.name} did not answer, or not to this certificate; ask when it is back, or compare rosters."
            ) from None
        self.received += len(body)
        if status == 200:
            return decode(body, most=most)
        self.refuse(status, decode(body, most=0) if status in REFUSALS else None)
        raise SiteSilent(f"{self.name} could not answer; its log tells why.")

    def refuse(self, status: int, said: Frame | None) -> None:
        """Raise what an answer other than 200 says, if it says why; ``said`` is its frame, of a refusal alone."""
        if said is None or status == UNUSABLE:
            return
        line = f"{self.name}: {said.fact('line', str)}"
        raise BudgetExhausted(line) if status == REFUSED_BY_BUDGET else Refused(line)

    def _read(self, answer: httpx.Response, *, most: int) -> bytes:
        parts, size = [], 0
        for part in answer.iter_raw():  # a compressed answer is not unpacked, but refused
            size += len(part)
            if size > most:
                raise Refused(f"{self.name} answered with more bytes than planned; nothing was used of it.")
            parts.append(part)
        return b"".join(parts)


def _is_about_certificates(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError) or "alert" in str(seen).lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False
