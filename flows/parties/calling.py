"""Calls of one party to another: HTTPS with mutual certificates, a stated time, and an answer of a bounded length.

A caller for a service whose refusals have other types overrides `Caller.refuse`.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, Refused, SiteSilent
from flows.parties.certificates import calling_context, fingerprint_of
from flows.parties.frames import OVERHEAD, Frame, decode, encode
from storage.errors import BudgetExhausted

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
