"""Parameters of flows and commands, made from records of options: names, types, forms, flags, help texts and bounds.

`with_options` declares the fields of a record as parameters of a function: of a flow with `form_field`, of a command
with `command_option`. Options of no record, which flows and commands share, are declared below once.

The flow's own checks decide, with one line for each refusal; the bounds of a form only save a run that would be
refused. Prefect reads ``json_schema_extra`` alone: it takes descriptions from docstrings of another style than ours.

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
from dataclasses import MISSING, fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from storage.errors import Invalid
from storage.options import Handling, OptionField, options_of, rules_of

type Annotation = Callable[[OptionField], Any]
"""A function that gives the type of a parameter, with what its reader needs to know."""


def with_options[**P, T](
    record: type[Any], *, annotation: Annotation, omitted_is_none: bool = False, without: Collection[str] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare the ``**options`` of a function as one keyword parameter for each field of a record.

    Parameters
    ----------
    record : type
        The record of options.
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
        kept = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        after = [one for one in kept if one.kind is one.KEYWORD_ONLY]
        options = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(option, omitted_is_none=omitted_is_none),
                annotation=annotation(option),
            )
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
    return Annotated[kind, _shown(option)]


def _shown(option: OptionField) -> FieldInfo:
    in_place = {} if option.handling.form is None else option.handling.form()
    field: FieldInfo = Field(json_schema_extra={"description": option.help, **option.rules(), **in_place})
    return field


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


# Options of no record

_WORKERS = OptionField(
    "workers", int | None, None, Field(description="Processes of a cluster started for the run.", ge=1)
)
_DRY_RUN = OptionField("dry_run", bool, MISSING, Field(description="Show what the run would cost; touch nothing."))
_NEW_NAME = OptionField(
    "name", str, MISSING, Field(description="The dataset's name; each ingest makes a new snapshot of it.", min_length=1)
)
_STREAM_NAME = OptionField(
    "name",
    str,
    MISSING,
    Field(description="The name of an open stream, under which its versions appear.", min_length=1),
    Handling(is_argument=True),
)
_SLOT = OptionField(
    "slot",
    str | None,
    None,
    Field(
        description="Names the slot, like 2026-01-05; by default that of the planned time, in the schedule's "
        "zone, or of now."
    ),
)
_SNAPSHOT = OptionField(
    "snapshot",
    str | None,
    None,
    Field(description="Insist on this snapshot; refused where the slot has another. By default the newest."),
)
_RELEASES = OptionField(
    "releases",
    int | None,
    None,
    Field(description="So many releases in all share the budget equally; epsilon is then left out.", ge=1),
)
_ALIAS = OptionField(
    "alias",
    str,
    MISSING,
    Field(description="The alias that moves to each release that passes the gate.", pattern="^[a-z][a-z0-9._-]{0,99}$"),
)
_DRIFT_AT_MOST = OptionField(
    "drift_at_most",
    float,
    MISSING,
    Field(description="Hold a release that lacks more than this part of the champion's directions.", ge=0, le=1),
)
_SETTLED = OptionField(
    "settled",
    float,
    MISSING,
    Field(description="Seconds since the last change of a file after which it counts as whole.", ge=0),
)
_SOURCES = OptionField(
    "source", Any, MISSING, Field(description="@NAME: where dataset NAME was last ingested from by hand; or files.")
)
_INBOX = OptionField(
    "inbox",
    str,
    MISSING,
    Field(
        description="@NAME: where dataset NAME was last refreshed from by hand; or a folder, a pattern in one, or "
        "s3://bucket/prefix.",
        min_length=1,
    ),
)

Workers = Annotated[int | None, _shown(_WORKERS), _spelled(_WORKERS)]
DryRun = Annotated[bool, _shown(_DRY_RUN), _spelled(_DRY_RUN)]
NewName = Annotated[str, _shown(_NEW_NAME), _spelled(_NEW_NAME)]
StreamName = Annotated[str, _shown(_STREAM_NAME), _spelled(_STREAM_NAME)]
Slot = Annotated[str | None, _shown(_SLOT), _spelled(_SLOT)]
SnapshotId = Annotated[str | None, _shown(_SNAPSHOT), _spelled(_SNAPSHOT)]
Releases = Annotated[int | None, _shown(_RELEASES), _spelled(_RELEASES)]
Alias = Annotated[str, _shown(_ALIAS), _spelled(_ALIAS)]
DriftAtMost = Annotated[float, _shown(_DRIFT_AT_MOST), _spelled(_DRIFT_AT_MOST)]
Settled = Annotated[float, _shown(_SETTLED), _spelled(_SETTLED)]
Sources = Annotated[str | list[str], _shown(_SOURCES)]
"""The source as a flow takes it: a reference, as paths are private. A command takes paths."""
InboxAddress = Annotated[str, _shown(_INBOX)]
"""The inbox as a flow takes it: a reference, as paths are private. A command takes an address."""


# Settings of mechanisms

type Given = Mapping[str, Any] | Iterable[tuple[str, Any]] | None
type Kinds = Callable[[], Mapping[str, type[Any]]]
"""Returns the classes of mechanisms by name; a function, so that they are loaded for forms alone."""

STATED_APART = ("n_components", "rank", "components")
"""Fields of mechanisms that are separate options of a request."""
NOT_OFFERED = ("allow_uncertified",)
"""Fields that weaken a guarantee, which no form offers: they are insisted on as text."""

_COLLUDERS = Field(description="Sites that may tell all they know; below a third of the others by default.", ge=0)
_DROPOUTS = Field(description="Further sites whose noise may be missing.", ge=0)
_OVERSAMPLING = Field(description="Directions carried along beyond those asked for.", ge=0)
_CALIBRATION = Field(description="tight: the least noise with the guarantee; paper: as printed, where that is proved.")
_SHARE = "The share of the squared loss for "

SETTINGS: Mapping[str, FieldInfo] = {
    "averaging": Field(description="The second half's projectors, or the last product alone, as published."),
    "burn_in": Field(description="Products that do not enter the average of directions.", ge=0),
    "calibration": _CALIBRATION,
    "centre": Field(description="What is publicly known to be an average rating; the middle of the range by default."),
    "clip": Field(
        description="Bring each user's factor to its norm, or clip longer ones, with weights or as published."
    ),
    "coins": Field(description="Whether choices by chance are made once a release, or anew in every round."),
    "colluders": _COLLUDERS,
    "diagonal_passes": Field(description="How often the moment's diagonal is replaced after the release.", ge=0),
    "dropouts": _DROPOUTS,
    "epochs": Field(description="Epochs, each with one full release.", ge=1),
    "form": Field(description="How the release is computed or cut up; see the mechanism's page."),
    "frequent": Field(description="The share of items that get factors, those counted most.", gt=0, le=1),
    "growth": Field(description="How much more of the squared loss the last round gets than the first.", gt=0),
    "inner_steps": Field(description="Steps in an epoch.", ge=2),
    "integrated_time": Field(description="The number of steps times the step size.", gt=0),
    "item_ridge": Field(description="The ridge of items' regressions, in multiples of the noise's norm.", gt=0),
    "iterations": Field(description="Noisy products; noise grows like the square root of their number.", ge=1),
    "message_clip": Field(
        description="Bound of a record's message in squared clip norms; 1 clips nothing.", gt=0, le=1
    ),
    "mu": Field(description="The free mu of the printed noise, for calibration=paper.", gt=0, lt=1),
    "noise": Field(description="The law of the noise."),
    "nuclear_norm": Field(
        description="Bound of the prediction's nuclear norm, relative to a matrix of this rank.", gt=0
    ),
    "offsets": Field(description="Whether noisy offsets of items are taken off first."),
    "orthonormal": Field(description="Whether factors of items are made orthonormal after each round."),
    "oversampling": _OVERSAMPLING,
    "passes": Field(description="Passes over the rows, fixed before any is read.", ge=1),
    "point_factor": Field(description="mixture: the clip norm over the root mean square of points.", ge=1),
    "pooled": Field(description="The statistics of how many last rounds are averaged.", ge=1),
    "private_centre": Field(description="Whether a released mean is the centre, where none is declared."),
    "rate": Field(description="The probability with which a record is in a batch.", gt=0, le=1),
    "rating_clip": Field(description="Bound of what is left of a rating; follows from epsilon by default.", gt=0),
    "rounds": Field(description="Rounds, fixed before any row is read.", ge=1),
    "row_norm": Field(
        description="The norm that a row of centred ratings is clipped to, in multiples of their spread.", gt=0
    ),
    "rows_kept": Field(description="The number of features that may have a part in the components.", ge=1),
    "sampler": Field(description="peeling: exact draws, one after the other; gibbs is not certified."),
    "sampling": Field(
        description="Of more ratings than are counted: those of rare items, a random choice, or weights."
    ),
    "scaling": Field(description="Bring every user's row to one norm, or scale down longer ones alone."),
    "score_factor": Field(description="mixture: the bound of a point's scores over their root mean square.", ge=1),
    "share": Field(description="The share of the squared loss for full releases.", gt=0, lt=1),
    "split": Field(description="The share of the loss for the second moment.", gt=0, lt=1),
    "spread": Field(description="The public std of centred ratings; a quarter of their range by default.", gt=0),
    "start": Field(description="Random factors, which cost nothing, or eigenvectors of a noisy moment."),
    "start_share": Field(description=f"{_SHARE}the moment of start=analyze_gauss.", gt=0, lt=1),
    "steps": Field(description="Batches in all.", ge=1),
    "totals_share": Field(description=f"{_SHARE}counts and offsets.", gt=0, lt=1),
    "unobserved": Field(
        description="The weight of every pair of a user and an item, rated or not; 0 for ratings.", ge=0
    ),
    "user_means": Field(description="Whether a user's own mean is taken off that user's ratings."),
    "user_norm": Field(description="The norm that a user's factor is brought to.", gt=0),
    "user_prior": Field(description="How many ratings at the centre that mean counts in.", ge=0),
    "user_ridge": Field(description="The ridge of users' regressions.", gt=0),
}
"""Help and bounds by the name of a setting, which means the same in each mechanism that has it."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def settings_form(kinds: Kinds) -> Callable[[], dict[str, Any]]:
    """Return the form of an option for the settings of mechanisms of these kinds."""
    return lambda: _parts(kinds())


def private_words(kinds: Kinds, *others: str) -> Callable[[], dict[str, Any]]:
    """Return the rule of a form that offers private mechanisms alone, besides other words."""
    return lambda: {"enum": [*others, *sorted(kinds())]}


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
    hints = get_type_hints(kind)
    properties = {
        option.name: _setting(option.name, hints[option.name], option.default)
        for option in fields(kind)
        if option.name not in (*STATED_APART, *NOT_OFFERED)
    }
    return {"type": "object", "title": name, "properties": properties, "additionalProperties": False}


def _setting(name: str, hint: Any, default: Any) -> dict[str, Any]:
    """Return the JSON schema of a setting: its type, bounds, help and default."""
    found: dict[str, Any] = {"title": name, "description": SETTINGS[name].description, **rules_of(SETTINGS[name])}
    words = [word for one in (get_args(hint) or ()) if get_origin(one) is Literal for word in get_args(one)]
    if get_origin(hint) is Literal or words:
        found |= {"type": "string", "enum": words or list(get_args(hint))}
    else:
        (kind,) = (one for one in (get_args(hint) or (hint,)) if one is not NoneType)
        found["type"] = _TYPES[kind]
    return found if default in (None, MISSING) else {**found, "default": default}
