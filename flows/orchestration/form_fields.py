"""Types of flows' parameters with a help text for Prefect's form, and with bounds that its server checks beforehand.

The flow's own checks decide, with one line for each refusal; the bounds here only save a run that would be refused.
Prefect reads ``json_schema_extra`` alone: it takes descriptions from docstrings of another style than ours.
"""

from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo

from flows.families.subspace import SUBSPACE
from storage.datasets.ingest_options import OptionField


def form_field(option: OptionField) -> Any:
    """Return the type of an option as a flow's parameter."""
    meaning = option.meaning
    rules: dict[str, Any] = {
        "minimum": meaning.minimum,
        "maximum": meaning.maximum,
        "enum": list(meaning.choices) or None,
    }
    return Annotated[option.kind, _shown(meaning.help, **{rule: to for rule, to in rules.items() if to is not None})]


def _shown(description: str, **rules: Any) -> FieldInfo:
    field: FieldInfo = Field(json_schema_extra={"description": description, **rules})
    return field


# Parameters of a fit
DatasetName = Annotated[str, _shown("Name of the dataset; its newest snapshot is read.", minLength=1)]
Components = Annotated[int, _shown("Number of components k.", minimum=1)]
Epsilon = Annotated[
    float | None, _shown("Privacy loss that each run spends of the population's budget.", exclusiveMinimum=0)
]
Delta = Annotated[float | None, _shown("Failure probability; below 1 over the records.", minimum=0, exclusiveMaximum=1)]
ClipNorm = Annotated[
    float | str, _shown("Bound on a record's norm, from public knowledge; or quantile:0.9, chosen privately.")
]
Publish = Annotated[str, _shown("Name under which each run publishes a version.", pattern="^[a-z][a-z0-9._-]{0,99}$")]
Mechanism = Annotated[str, _shown("How noise is added.", enum=sorted({**SUBSPACE.mechanisms, **SUBSPACE.references}))]
MechanismSettings = Annotated[dict[str, str] | None, _shown("Parameters of the mechanism, as text.")]
RunKey = Annotated[
    str | None, _shown("Names the release. Leave it empty: each slot of a schedule is then a release of its own.")
]
Workers = Annotated[int | None, _shown("Workers of a cluster that is started for the run.", minimum=1)]
LargeDelta = Annotated[bool, _shown("Insist on a delta that is not below one over the number of records.")]
NotPrivate = Annotated[
    bool, _shown("Insist on mechanism non_private: marked so for ever, and no private release is admitted after it.")
]
RowPolicy = Annotated[
    str, _shown("Scale long records down to the clip norm, or all to it.", enum=["clip", "normalise"])
]
Center = Annotated[str, _shown("Around the origin, or around a mean released too.", enum=["none", "private"])]

# Parameters of an ingest that are no options
Sources = Annotated[str | list[str], _shown("@NAME: where dataset NAME was last ingested from by hand; or files.")]
NewName = Annotated[str, _shown("The dataset's name; each run makes a new snapshot of it.", minLength=1)]

# Parameters of a reproduction
Runs = Annotated[int, _shown("Runs whose mean is compared.", minimum=1)]
Mechanisms = Annotated[list[str] | None, _shown("Mechanisms whose cases are run; all by default.")]
