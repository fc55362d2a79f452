"""Parameters of flows and commands, made from declared options.

Names, types, forms, flags, help texts and bounds are declared once, in the fields of option records. `with_options`
declares these fields as parameters of a function: of a flow with `form_field`, of a command with `command_option`. It
also annotates the shared options below, which appear directly in a signature.

The records validate every value, and report each refusal in one line. The bounds in a form serve only to prevent runs
that the records would refuse. Descriptions are passed in ``json_schema_extra``, because Prefect otherwise reads them
from docstrings of a style that this project does not use.

Settings of a mechanism have the names, types and defaults of the mechanism's fields. A form has one part for each
mechanism: ``settings`` = ``{"dp_spca": {"rate": 0.2}}``. A command line (``--settings rate=0.2``) and a deployment pass
text. A request stores text in either case.

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
from storage.options import Handling, OptionField, options_of, rules_of

type Annotation = Callable[[OptionField], Any]
"""A function that returns the annotation of a parameter: its type, with the metadata that Prefect or Typer reads."""


def with_options[**P, T](
    *records: type[Any], annotation: Annotation, omitted_is_none: bool = False, without: Collection[str] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare the ``**options`` of a function as one keyword parameter for each field of the records.

    Parameters
    ----------
    records : type
        Records of options. Without records, only the shared options of the signature are annotated.
    annotation : callable
        Returns the annotation of each parameter.
    omitted_is_none : bool
        Whether omitting a required option that may be None sets it to None. This is for command lines, which cannot
        express None otherwise.
    without : collection of str
        Options that are not declared as parameters; they keep their defaults.

    Returns
    -------
    callable
        A decorator. It changes the signature that Prefect and Typer read; calls of the function work as before.
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
    """Return a parameter of a function; if it is one of the shared options, annotate it with ``annotation``."""
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
"""Settings as text, or one part for each mechanism."""
_LEFT_OUT: Any = SkipJsonSchema()  # type: ignore[type-arg]  # the class takes no type arguments at run time


def form_field(option: OptionField) -> Any:
    """Return the annotation of an option as a flow's parameter; the form omits options that are not offered."""
    if not option.handling.is_offered:
        return Annotated[option.kind, _LEFT_OUT]
    kind = _SETTINGS if option.is_settings else option.kind
    in_place = {} if option.handling.form is None else option.handling.form()
    return Annotated[kind, Field(json_schema_extra={"description": option.help, **option.rules, **in_place})]


def command_option(option: OptionField) -> Any:
    """Return the annotation of an option as a command's parameter."""
    kind = option.kind
    if option.is_settings:
        kind = list[str] | None
    elif kind in (float | str, int | str):
        kind = str
    return Annotated[kind, _spelled(option)]


def _spelled(option: OptionField) -> Any:
    """Return the Typer argument or option that declares an option on the command line."""
    flag, bounds = f"--{option.name.replace('_', '-')}", option.bounds
    if option.handling.is_argument:
        return typer.Argument(help=option.help)
    if option.is_settings:
        return typer.Option(flag, help=option.help, metavar="KEY=VALUE", callback=_pairs_of(flag))
    if option.kind == bool | None or (not option.is_required and option.default is True):
        return typer.Option(f"{flag}/--no-{flag[2:]}", help=option.help)
    for kind, parser, metavar in _PARSED:
        if option.kind == kind:
            return typer.Option(flag, help=option.help, parser=parser, metavar=metavar)
    if bounds.keys() & {"gt", "lt"}:  # Typer has no strict bounds, so the option record checks them
        bounds = {}
    return typer.Option(flag, help=option.help, min=bounds.get("ge"), max=bounds.get("le"))


def _pairs_of(flag: str) -> Callable[[list[str] | None], list[tuple[str, str]]]:
    """Return the parser of repeated ``KEY=VALUE`` options, which accepts each key once."""

    def read(texts: list[str] | None) -> list[tuple[str, str]]:
        pairs = [text.partition("=") for text in texts or ()]
        if not all(sign for _, sign, _ in pairs) or len({key for key, _, _ in pairs}) < len(pairs):
            raise typer.BadParameter(f"write {flag} KEY=VALUE, with each key once.")
        return [(key, value) for key, _, value in pairs]

    return read


def _roles(text: str) -> dict[str, str]:
    """Parse roles of columns, written as ``row=USER,column=ITEM``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(role and name for role, _, name in pairs):
        raise typer.BadParameter(
            "write row=NAME,column=NAME,value=NAME, with at least one of these roles", param_hint="--columns"
        )
    return {role.strip(): name for role, _, name in pairs}


def _count_or_word(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text} is not a count; give a whole number of at least 1, or auto.")
    return int(text)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_PARSED = (
    (dict[str, str] | None, _roles, "ROLE=NAME,..."),
    (float | str, _number_or_word, "NUMBER|WORD"),
    (int | str, _count_or_word, "COUNT|auto"),
)
"""The kinds of option values that Typer cannot parse, each with a parser and the placeholder shown in help."""

# Options that flows and commands share in addition to their records

Workers = Annotated[int | None, Field(description="Number of processes of a cluster started for the run.", ge=1)]
DryRun = Annotated[bool, Field(description="Show what the run would cost, without changing anything.")]
NewName = Annotated[
    str, Field(description="Name of the dataset; each ingest creates a new snapshot of it.", min_length=1)
]
StreamName = Annotated[
    str,
    Field(description="Name of an open stream, under which its versions are published.", min_length=1),
    Handling(is_argument=True),
]
Slot = Annotated[
    str | None,
    Field(
        description="Name of the slot, like 2026-01-05; by default the slot of the planned time in the "
        "schedule's time zone, or of the current time."
    ),
]
SnapshotId = Annotated[
    str | None,
    Field(description="Require this snapshot; a slot with another snapshot is refused. By default the newest."),
]
Releases = Annotated[
    int | None,
    Field(description="Number of releases that share the budget equally; replaces epsilon.", ge=1),
]
Alias = Annotated[
    str,
    Field(
        description="The alias that moves to each release that passes the promotion checks.",
        pattern="^[a-z][a-z0-9._-]{0,99}$",
    ),
]
DriftAtMost = Annotated[
    float,
    Field(description="Hold a release that lacks more than this share of the champion's directions.", ge=0, le=1),
]
Settled = Annotated[
    float, Field(description="Seconds since its last change after which a file counts as complete.", ge=0)
]
Sources = Annotated[
    str | list[str], Field(description="@NAME: the source of the last manual ingest of dataset NAME; or files.")
]
"""The source parameter of a flow: a reference, because paths are private. A command takes paths."""
InboxAddress = Annotated[
    str,
    Field(
        description="@NAME: the inbox of the last manual refresh of dataset NAME; or a folder, a pattern "
        "of files, or s3://bucket/prefix.",
        min_length=1,
    ),
]
"""The inbox parameter of a flow: a reference, because paths are private. A command takes an address."""


# Settings of mechanisms

type Given = Mapping[str, Any] | Iterable[tuple[str, Any]] | None
type Kinds = Callable[[], Mapping[str, type[Any]]]
"""A function that returns mechanism classes by name, so that they are imported only when a form is built."""

NOT_OFFERED = ("allow_uncertified",)
"""Fields that weaken a guarantee. No form offers them; they must be set explicitly as text."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def settings_form(kinds: Kinds) -> Callable[[], dict[str, Any]]:
    """Return a function that builds the form schema for the settings of these mechanisms.

    The schema admits null, one typed part for each mechanism, and settings as text.
    """

    def form() -> dict[str, Any]:
        offered = {}
        for name, kind in sorted(kinds().items()):
            properties = {each.name: _setting(each) for each in settings_of(kind) if each.name not in NOT_OFFERED}
            part = {"type": "object", "title": name, "properties": properties, "additionalProperties": False}
            if properties:
                offered[name] = {"title": name, "anyOf": [{"type": "null"}, part]}
        by_text = {"title": "Settings", "type": "object", "properties": offered}
        return {"anyOf": [{"type": "null"}, {**by_text, "additionalProperties": {"type": "string"}}]}

    return form


def text_settings(given: Given, *, of: str) -> dict[str, str]:
    """Return the settings of a mechanism as text, given as text or as the parts of a form.

    Raises
    ------
    Invalid
        If settings of another mechanism are given.
    """
    settings: dict[str, str] = {}
    for name, value in dict(given or ()).items():
        if isinstance(value, Mapping):
            entries = {key: _text(one) for key, one in value.items() if one is not None}
            if entries and name != of:
                raise Invalid(
                    f"settings of {name} are given, but the mechanism is {of}; remove these settings, or choose {name}"
                )
            settings |= entries
        elif value is not None:
            settings[name] = _text(value)
    return settings


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setting(setting: Setting) -> dict[str, Any]:
    """Return the JSON schema of a setting, with its type, bounds, help and default."""
    found: dict[str, Any] = {"title": setting.name, "description": setting.help, **rules_of(setting.bounds)}
    kinds = [one for one in (setting.hint, *get_args(setting.hint)) if one is not NoneType]
    words = [word for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    found |= {"type": "string", "enum": words} if words else {"type": _TYPES[kinds[-1]]}
    return found if setting.default in (None, MISSING) else {**found, "default": setting.default}
