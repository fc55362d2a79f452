"""Parameters of flows and commands, made from declared options: names, types, forms, flags, help texts and bounds.

`with_options` declares the fields of records as parameters of a function: of a flow with `form_field`, of a command
with `command_option`. It also spells the shared options below, which stand in a signature by themselves.

The records decide, with one line for each refusal; the bounds of a form only save a run that would be refused. Prefect
reads ``json_schema_extra`` alone: it takes descriptions from docstrings of another style than ours.

Settings of a mechanism have the names, types and defaults of the mechanism's own fields. A form has one part a
mechanism, ``settings`` = ``{"dp_spca": {"rate": 0.2}}``; a command line, ``--settings rate=0.2``, and deployments give
text. A request keeps text, whichever it was given.

Examples
--------
::

    @with_options(IngestOptions, annotation=form_field)
    def ingest_dataset(source: Sources, name: NewName, **options: Any) -> str: ...

    inspect.signature(ingest_dataset)    # (source, name, *, population: str | None = None, features: ...

>>> text_settings({"dp_spca": {"rate": 0.2, "mu": None}, "noisy_power": {}}, of="dp_spca")
{'rate': '0.2'}
>>> text_settings([("rate", "0.2")], of="dp_spca")
{'rate': '0.2'}
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from dpca.errors import Invalid
from dpca_tasks.mechanisms.registered import Setting, settings_of
from storage.options import Handling, OptionField, options_of

type Annotation = Callable[[OptionField], Any]
"""A function that gives the type of a parameter, with what its reader needs to know."""


def with_options[**P, T](
    *records: type[Any], annotation: Annotation, omitted_is_none: bool = False, without: Collection[str] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare the ``**options`` of a function as one keyword parameter for each field of records.

    Parameters
    ----------
    records : type
        Records of options; without one, only the shared options of the signature are spelled.
    annotation : callable
        Gives the type of each parameter.
    omitted_is_none : bool
        Whether a required option that may be None is None when it is left out, as on a command line, which has no other
        word for None.
    without : collection of str
        Options that are not asked for: they keep their defaults.

    Returns
    -------
    callable
        A decorator. It changes the signature that Prefect and Typer read; a call works as before.
    """

    def declare(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        kept = [
            _spelled_in(one, annotation) for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD
        ]
        after = [one for one in kept if one.kind is one.KEYWORD_ONLY]
        options = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(option, omitted_is_none=omitted_is_none),
                annotation=annotation(option),
            )
            for record in records
            for option in options_of(record)
            if option.name not in without
        ]
        parameters = [*kept[: len(kept) - len(after)], *options, *after]
        vars(function)["__signature__"] = signature.replace(parameters=parameters)
        function.__annotations__ = {one.name: one.annotation for one in parameters} | {
            "return": signature.return_annotation
        }
        return function

    return declare


def _spelled_in(parameter: inspect.Parameter, annotation: Annotation) -> inspect.Parameter:
    """Return a parameter with the annotation of the shared option that it is, if it is one."""
    declared = parameter.annotation
    if not any(isinstance(one, FieldInfo) for one in getattr(declared, "__metadata__", ())):
        return parameter
    option = OptionField(parameter.name, get_args(declared)[0], FieldInfo.from_annotation(declared))
    return parameter.replace(annotation=annotation(option))


def _default(option: OptionField, *, omitted_is_none: bool) -> Any:
    if not option.is_required:
        return option.default
    return None if omitted_is_none and option.may_be_none else inspect.Parameter.empty


_SETTING = bool | int | float | str | None
_SETTINGS = dict[str, _SETTING | dict[str, _SETTING]] | None
"""Settings as text, or a part of them a mechanism."""
_LEFT_OUT: Any = SkipJsonSchema()  # type: ignore[type-arg]  # a class without arguments where it runs


def form_field(option: OptionField) -> Any:
    """Return the type of an option as a flow's parameter; the form leaves out what it is not to offer."""
    if not option.handling.is_offered:
        return Annotated[option.kind, _LEFT_OUT]
    kind = _SETTINGS if option.is_settings else option.kind
    in_place = {} if option.handling.form is None else option.handling.form()
    return Annotated[kind, Field(json_schema_extra={"description": option.help, **option.rules(), **in_place})]


def command_option(option: OptionField) -> Any:
    """Return the type of an option as a command's parameter."""
    kind = option.kind
    if option.is_settings:
        kind = list[str] | None
    elif kind in (float | str, int | str):
        kind = str
    return Annotated[kind, _spelled(option)]


def _spelled(option: OptionField) -> Any:
    """Return how a command line spells an option."""
    flag = option.flag
    if option.handling.is_argument:
        return typer.Argument(help=option.help)
    if option.is_settings:
        return typer.Option(flag, help=option.help, metavar="KEY=VALUE", callback=_pairs_of(flag))
    if option.kind is bool:
        return typer.Option(flag, help=option.help)
    if option.kind == bool | None:
        return typer.Option(f"{flag}/--no-{flag[2:]}", help=option.help)
    if option.kind == dict[str, str] | None:
        return typer.Option(flag, help=option.help, parser=_roles, metavar="ROLE=NAME,...")
    if option.kind == float | str:
        return typer.Option(flag, help=option.help, parser=_number_or_word, metavar="NUMBER|WORD")
    if option.kind == int | str:
        return typer.Option(flag, help=option.help, parser=_count_or_word, metavar="COUNT|auto")
    low, high = _closed_bounds(option)
    return typer.Option(flag, help=option.help, min=low, max=high)


def _closed_bounds(option: OptionField) -> tuple[int | None, int | None]:
    """Return the bounds that a command line checks: an interval with an open end is left to the job."""
    bounds = option.bounds
    return (None, None) if bounds.keys() & {"gt", "lt"} else (bounds.get("ge"), bounds.get("le"))


def _pairs_of(flag: str) -> Callable[[list[str] | None], list[tuple[str, str]]]:
    """Return the reader of ``KEY=VALUE``, given once for each key."""

    def read(texts: list[str] | None) -> list[tuple[str, str]]:
        pairs = [text.partition("=") for text in texts or ()]
        if not all(sign for _, sign, _ in pairs) or len({key for key, _, _ in pairs}) < len(pairs):
            raise typer.BadParameter(f"write {flag} KEY=VALUE, each key once.")
        return [(key, value) for key, _, value in pairs]

    return read


def _roles(text: str) -> dict[str, str]:
    """Read ``row=USER,column=ITEM``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(role and name for role, _, name in pairs):
        raise typer.BadParameter("write row=NAME,column=NAME,value=NAME, or some of them", param_hint="--columns")
    return {role.strip(): name for role, _, name in pairs}


def _count_or_word(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text} is no count; give a whole number, at least 1, or auto.")
    return int(text)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


# Options that flows and commands share, beside their records

Workers = Annotated[int | None, Field(description="Processes of a cluster started for the run.", ge=1)]
DryRun = Annotated[bool, Field(description="Show what the run would cost; touch nothing.")]
NewName = Annotated[str, Field(description="The dataset's name; each ingest makes a new snapshot of it.", min_length=1)]
StreamName = Annotated[
    str,
    Field(description="The name of an open stream, under which its versions appear.", min_length=1),
    Handling(is_argument=True),
]
Slot = Annotated[
    str | None,
    Field(
        description="Names the slot, like 2026-01-05; by default that of the planned time, in the schedule's zone, or "
        "of now."
    ),
]
SnapshotId = Annotated[
    str | None,
    Field(description="Insist on this snapshot; refused where the slot has another. By default the newest."),
]
Releases = Annotated[
    int | None,
    Field(description="So many releases in all share the budget equally; epsilon is then left out.", ge=1),
]
Alias = Annotated[
    str,
    Field(description="The alias that moves to each release that passes the gate.", pattern="^[a-z][a-z0-9._-]{0,99}$"),
]
DriftAtMost = Annotated[
    float,
    Field(description="Hold a release that lacks more than this part of the champion's directions.", ge=0, le=1),
]
Settled = Annotated[
    float, Field(description="Seconds since the last change of a file after which it counts as whole.", ge=0)
]
Sources = Annotated[
    str | list[str], Field(description="@NAME: where dataset NAME was last ingested from by hand; or files.")
]
"""The source as a flow takes it: a reference, as paths are private. A command takes paths."""
InboxAddress = Annotated[
    str,
    Field(
        description="@NAME: where dataset NAME was last refreshed from by hand; or a folder, a pattern in one, or "
        "s3://bucket/prefix.",
        min_length=1,
    ),
]
"""The inbox as a flow takes it: a reference, as paths are private. A command takes an address."""


# Settings of mechanisms

type Given = Mapping[str, Any] | Iterable[tuple[str, Any]] | None
type Kinds = Callable[[], Mapping[str, type[Any]]]
"""Returns the classes of mechanisms by name; a function, so that they are loaded for forms alone."""

NOT_OFFERED = ("allow_uncertified",)
"""Fields that weaken a guarantee, which no form offers: they are insisted on as text."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def settings_form(kinds: Kinds) -> Callable[[], dict[str, Any]]:
    """Return the form of an option for the settings of mechanisms of these kinds."""
    return lambda: _parts(kinds())


def text_settings(given: Given, *, of: str) -> dict[str, str]:
    """Return the settings of a mechanism as text, from text or from the parts of a form.

    Raises
    ------
    Invalid
        When another mechanism's part is filled in.
    """
    settings: dict[str, str] = {}
    for name, value in dict(given or ()).items():
        if isinstance(value, Mapping):
            stated = {key: _text(one) for key, one in value.items() if one is not None}
            if stated and name != of:
                raise Invalid(f"settings of {name} are given and {of} is asked for; empty that part, or ask for {name}")
            settings |= stated
        elif value is not None:
            settings[name] = _text(value)
    return settings


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parts(kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    """Return the JSON schema of settings in a form: none, or one typed part a mechanism; text stays admitted."""
    parts = {name: _part(name, kind) for name, kind in sorted(kinds.items())}
    offered = {
        name: {"title": name, "anyOf": [{"type": "null"}, part]} for name, part in parts.items() if part["properties"]
    }
    by_text = {"type": "object", "properties": offered, "additionalProperties": {"type": "string"}, "title": "Settings"}
    return {"anyOf": [{"type": "null"}, by_text]}


def _part(name: str, kind: type[Any]) -> dict[str, Any]:
    properties = {each.name: _setting(each) for each in settings_of(kind) if each.name not in NOT_OFFERED}
    return {"type": "object", "title": name, "properties": properties, "additionalProperties": False}


def _setting(setting: Setting) -> dict[str, Any]:
    """Return the JSON schema of a setting: its type, bounds, help and default."""
    hint = setting.hint
    bounds: dict[str, Any] = dict(setting.bounds)
    option = OptionField(setting.name, hint, Field(description=setting.help, **bounds))
    found: dict[str, Any] = {"title": setting.name, "description": option.help, **option.rules()}
    words = [word for one in (get_args(hint) or ()) if get_origin(one) is Literal for word in get_args(one)]
    if get_origin(hint) is Literal or words:
        found |= {"type": "string", "enum": words or list(get_args(hint))}
    else:
        (kind,) = (one for one in (get_args(hint) or (hint,)) if one is not NoneType)
        found["type"] = _TYPES[kind]
    return found if setting.default in (None, MISSING) else {**found, "default": setting.default}
