"""What is asked of a remote ledger and what it answers: JSON in a frame, checked strictly before anything is done.

>>> read(Step, {"release": "0" * 32, "step": -1})
Traceback (most recent call last):
    ...
storage.errors.Invalid: step of this request is refused: Input should be greater than or equal to 0; correct it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from flows.parties.frames import Frame, encode, packed, unpacked
from storage.datasets.catalog import Entry
from storage.errors import BudgetExhausted, Invalid
from storage.ledger.balance import Quote, Statement
from storage.ledger.budgets import Budget
from storage.ledger.releases import Release

PROTOCOL = 1
"""The version of these messages; a ledger and those who ask it have the same."""
MOST_ASKED = 1 << 21
MOST_ANSWERED = 1 << 28
"""Bytes of a request and of an answer."""

_LARGEST = 2**63
_DEEPEST = 32


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("names are printable")
    return text


type ReleaseId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
type Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
type Name = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_printable)]


class Message(BaseModel):
    """A request without facts."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class OfPopulation(Message):
    """A question about a population's budget."""

    population: Name


class OfHistory(OfPopulation):
    """The same about its releases: all of them, or as many of the newest."""

    newest: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class OfStatement(OfHistory):
    """The same, and whether to return what each of them left."""

    burn_down: bool = False


class OfRelease(Message):
    """A question about a release, or an act on it."""

    release: ReleaseId


class OfRunKey(Message):
    """A question about the release of a run key, in one population or in all that the client may ask about."""

    run_key: Name
    population: Name | None = None


class OfDataset(Message):
    """A question about the current snapshot of a dataset."""

    dataset: Name


class OfSnapshot(Message):
    """A question about a snapshot."""

    snapshot: Name


class Priced(OfPopulation):
    """An event that is to be charged, and the guarantee that is stated of it."""

    event: dict[str, Any]
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Asked(Priced):
    """A release that is to be charged."""

    run_key: Name
    fingerprint: Digest
    snapshot: Name
    request: dict[str, Any]


class Step(OfRelease):
    """A step of a release."""

    step: Annotated[int, Field(ge=0, lt=2**31)]


class Answered(Step):
    """The answer of a step, by its digest."""

    digest: Digest


class Made(OfRelease):
    """The artifact that a release is committed with."""

    artifact: Digest


class Published(Made):
    """The name under which it, or what was made of it, is published."""

    name: Name
    made: Digest | None


class States(Message):
    """A question about the states of some releases."""

    releases: Annotated[list[ReleaseId], Field(max_length=1000)]


def read[M: Message](kind: type[M], facts: Mapping[str, Any]) -> M:
    """Check the facts of a request.

    Raises
    ------
    Invalid
        With the first fact that is refused, and the rule; not with what was sent.
    """
    try:
        return kind.model_validate(dict(facts))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"][:2])
        raise Invalid(f"{name} of this request is refused: {first['msg']}; correct it.") from None


def written(facts: Any) -> bytes:
    """Return plain JSON values as they travel in a frame."""
    return json.dumps(facts).encode()


def sent(facts: Any) -> bytes:
    """Return the frame of an answer."""
    return encode(*packed(written(facts)))


def asked(frame: Frame) -> dict[str, Any]:
    """Return what a request says: an object of finite numbers, nested to a bounded depth.

    Raises
    ------
    Invalid
        When it says something else.
    """
    try:
        found = json.loads(unpacked(frame), parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
        if isinstance(found, dict) and _depth(found) <= _DEEPEST:
            return found
    except (ValueError, RecursionError):
        pass
    raise Invalid("a request must be an object of finite numbers, texts and lists; nothing was done: send one.")


def answered(frame: Frame) -> Any:
    """Return what an answer says; infinities, such as what is spent of a voided budget, are among its numbers.

    Raises
    ------
    Invalid
        When it is no JSON.
    """
    try:
        return json.loads(unpacked(frame))
    except (ValueError, RecursionError):
        raise Invalid("the ledger answered no JSON; use one version of dpca here and there.") from None


def _refuse(_: str) -> None:
    raise ValueError("no finite number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("no finite number")
    return number


def _bounded(text: str) -> int:
    number = int(text)
    if not -_LARGEST <= number < _LARGEST:
        raise ValueError("a number beyond 64 bits")
    return number


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(part) for part in inside), default=0)


def facts_of_release(release: Release) -> dict[str, Any]:
    """Return a release as JSON values."""
    return {**asdict(release), "charge": release.charge.hex()}


def release_of(facts: Mapping[str, Any]) -> Release:
    """Return the release of such values."""
    return Release(**{**facts, "charge": bytes.fromhex(facts["charge"])})


def facts_of_statement(statement: Statement) -> dict[str, Any]:
    """Return a statement as JSON values."""
    releases = [facts_of_release(release) for release in statement.releases]
    return {
        **{"budget": asdict(statement.budget), "spent": statement.spent, "remaining": statement.remaining},
        **{"releases": releases, "earlier": statement.earlier, "published": dict(statement.published)},
        "left": dict(statement.left),
    }


def statement_of(facts: Mapping[str, Any]) -> Statement:
    """Return the statement of such values."""
    return Statement(
        budget=Budget(**facts["budget"]),
        spent=facts["spent"],
        remaining=facts["remaining"],
        releases=tuple(release_of(release) for release in facts["releases"]),
        earlier=facts["earlier"],
        published={digest: tuple(versions) for digest, versions in facts["published"].items()},
        left=facts["left"],
    )


def facts_of_quote(quote: Quote) -> dict[str, Any]:
    """Return a quote as JSON values."""
    refusal = None if quote.refusal is None else str(quote.refusal)
    return {"spent": quote.spent, "total": list(quote.total), "refusal": refusal}


def quote_of(facts: Mapping[str, Any]) -> Quote:
    """Return the quote of such values."""
    refusal = None if facts["refusal"] is None else BudgetExhausted(facts["refusal"])
    return Quote(spent=facts["spent"], total=tuple(facts["total"]), refusal=refusal)


def facts_of_entry(entry: Entry) -> dict[str, Any]:
    """Return a snapshot of the catalog as JSON values."""
    return asdict(entry)


def entry_of(facts: Mapping[str, Any]) -> Entry:
    """Return the snapshot of such values."""
    return Entry(**facts)
