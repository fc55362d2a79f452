"""Types of flows' parameters with a help text for Prefect's form, and with bounds that its server checks beforehand.

The flow's own checks decide, with one line for each refusal; the bounds here only save a run that would be refused.
Prefect reads ``json_schema_extra`` alone: it takes descriptions from docstrings of another style than ours.
"""

from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from storage.options import Meaning, OptionField

_SETTING = bool | int | float | str | None
_SETTINGS = dict[str, _SETTING | dict[str, _SETTING]] | None
"""Settings as text, or a part of them a mechanism."""
_LEFT_OUT: Any = SkipJsonSchema()  # type: ignore[type-arg]  # a class without arguments where it runs


def form_field(option: OptionField) -> Any:
    """Return the type of an option as a flow's parameter; the form leaves out what it is not to offer."""
    if not option.meaning.is_offered:
        return Annotated[option.kind, _LEFT_OUT]
    kind = _SETTINGS if option.is_settings else option.kind
    return Annotated[kind, _shown(option.meaning)]


def _shown(meaning: Meaning) -> FieldInfo:
    in_place = {} if meaning.form is None else meaning.form()
    field: FieldInfo = Field(json_schema_extra={"description": meaning.help, **meaning.rules(), **in_place})
    return field


# Parameters that are no options of a record
Workers = Annotated[int | None, _shown(Meaning("Workers of a cluster that is started for the run.", minimum=1))]
Sources = Annotated[
    str | list[str], _shown(Meaning("@NAME: where dataset NAME was last ingested from by hand; or files."))
]
StreamName = Annotated[
    str, _shown(Meaning("The name of a stream that is open, under which its versions appear.", min_length=1))
]
Slot = Annotated[
    str | None,
    _shown(Meaning("Names the slot, like 2026-01-05; by default that of the planned time, in the schedule's zone.")),
]
SnapshotId = Annotated[
    str | None, _shown(Meaning("Insist on this snapshot; refused where the slot has another. By default the newest."))
]
NewName = Annotated[str, _shown(Meaning("The dataset's name; each run makes a new snapshot of it.", min_length=1))]
InboxAddress = Annotated[
    str,
    _shown(
        Meaning(
            "@NAME: where dataset NAME was last refreshed from by hand; or a folder, a pattern in one, or s3://bucket/prefix.",
            min_length=1,
        )
    ),
]
Releases = Annotated[
    int | None,
    _shown(Meaning("So many releases in all share the budget equally; epsilon is then left empty.", minimum=1)),
]
Alias = Annotated[
    str,
    _shown(Meaning("The alias that moves to each release that passes the gate.", pattern="^[a-z][a-z0-9._-]{0,99}$")),
]
DriftAtMost = Annotated[
    float,
    _shown(
        Meaning("Hold a release that lacks more than this part of the champion's directions.", minimum=0, maximum=1)
    ),
]
Settled = Annotated[
    float, _shown(Meaning("Seconds since the last change of a file after which it counts as whole.", minimum=0))
]
DryRun = Annotated[
    bool,
    _shown(Meaning("Only tell whether the budget admits such a run, and what is left; nothing is charged or read.")),
]
