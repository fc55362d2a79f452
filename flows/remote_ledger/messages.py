"""Messages of a remote ledger, as pydantic models of its requests and responses.

Requests are JSON and are validated strictly.

>>> try:
...     Step.model_validate({"release": "0" * 32, "step": -1})
... except ValidationError as error:
...     print(fault_of(error, "this message"))
step of this message is refused: Input should be greater than or equal to 0; correct it.
"""

import json
import math
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SkipValidation,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import to_json

from dpca_tasks.accounting.events import Relation
from dpca_tasks.accounting.prices import Charge

if TYPE_CHECKING:  # not imported at run time, because clients need no FastAPI
    from fastapi.exceptions import RequestValidationError

PROTOCOL = 1
"""Version of the messages, which must be the same in the ledger and its clients."""
LONGEST_MESSAGE = 1 << 21
MOST_ANSWERED = 1 << 28
"""Largest number of bytes of a request, and of a response."""
LONGEST_REQUEST = 1 << 18
"""Largest number of bytes of the request that the ledger stores with a release."""

_LARGEST = 2**63
_DEEPEST = 32
_BYTES: Final = "base64"
JSON = "application/json"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("names must be printable")
    return text


def _short(request: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if len(written(request)) > LONGEST_REQUEST:
        raise ValueError(f"a stored request must have at most {LONGEST_REQUEST} bytes")
    return request


type ReleaseId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
type Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
type Name = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_printable)]
type Count = Annotated[int, Field(ge=0, lt=2**31)]
type Facts = dict[str, SkipValidation[JsonValue]]
"""A JSON object; the validator of `Message` checks its values."""


class Message(BaseModel):
    """Base class of all requests, and the class of requests without fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, sent: object) -> object:
        if isinstance(sent, dict) and len(sent) > len(cls.model_fields):  # raises one error for all unknown names
            raise ValueError("it has unknown names")
        _check_value(sent, depth=1)
        return sent


class OfPopulation(Message):
    """Request about a population's budget."""

    population: Name


class OfHistory(OfPopulation):
    """Request about a population's releases, either all or the ``newest`` ones."""

    newest: Count | None = None


class OfStatement(OfHistory):
    """Request for the statement of a budget; ``burn_down`` adds the budget that was left after each release."""

    burn_down: bool = False


class OfRelease(Message):
    """Request about a release, or for an operation on a release."""

    release: ReleaseId


class OfRunKey(Message):
    """Request to find a release by its run key, in one population or in all populations of the client."""

    run_key: Name
    population: Name | None = None


class OfDataset(Message):
    """Request for the current snapshot of a dataset."""

    dataset: Name


class OfSnapshot(Message):
    """Request for a snapshot by its id."""

    snapshot: Name


class Priced(OfPopulation):
    """Request to compute the epsilon of a release's noise (its event), with the guarantee that the client states."""

    event: Facts
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(ge=0, lt=1)]


class Requested(Priced):
    """Request to charge a release."""

    run_key: Name
    fingerprint: Digest
    snapshot: Name
    request: Annotated[Facts, AfterValidator(_short)]


class Step(OfRelease):
    """Request about a step (one noised query) of a release; steps are numbered from 0."""

    step: Count


class Answered(Step):
    """Request to record the digest of the noised answer of a step."""

    digest: Digest


class Made(OfRelease):
    """Request to commit a release with an artifact."""

    artifact: Digest


class Published(Made):
    """Request to commit a release and publish its artifact, or the artifact ``made`` from it, under a name."""

    name: Name
    made: Digest | None


class Answer[Value](BaseModel):
    """Response with one value: a record of the ledger, or one of the models below. It may hold infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, val_json_bytes=_BYTES)

    value: Value


class Identity(BaseModel):
    """Identity, version and clock of the ledger, with the caller's rights."""

    ledger: str
    protocol: int
    version: str
    time: float
    role: str
    populations: list[str]


class Quoted(BaseModel):
    """Response with the total after one more charge, and the message of the budget's refusal, if any."""

    spent: float
    total: Charge
    refusal: str | None


class Begun(BaseModel):
    """Response when a release begins: its event (noise), its relation and, if known, its snapshot's content digest."""

    event: Facts
    relation: Relation
    content: str | None = Field(repr=False)


class Refusal(BaseModel):
    """Response with an error: the name of its type, and one line for the client."""

    kind: str
    line: str


def fault_of(error: "ValidationError | RequestValidationError", what: str) -> str:
    """Return one line with the first invalid field of a message and the broken rule, but not the field's value."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"] if part != "body") or "the form"
    return f"{name} of {what} is refused: {first['msg'].removeprefix('Value error, ').rstrip('.')}; correct it."


def written(facts: object) -> bytes:
    """Encode a request to a ledger as JSON."""
    return json.dumps(facts).encode()


def answered(value: object) -> bytes:
    """Encode a value as a response of a ledger, in the form of `Answer`."""
    return to_json({"value": value}, bytes_mode=_BYTES, inf_nan_mode="constants")


def _check_value(value: object, *, depth: int) -> None:
    """Raise `ValueError` for an infinite number, NaN, an integer of more than 64 bits, or too deep nesting."""
    if depth > _DEEPEST:
        raise ValueError(f"objects and lists must be nested to a depth of at most {_DEEPEST}")
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_value(part, depth=depth + 1)
    elif not isinstance(value, str | None) and not _is_number(value):
        raise ValueError("numbers must be finite, and integers must have at most 64 bits")


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and -_LARGEST <= value < _LARGEST
