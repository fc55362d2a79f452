"""What Prefect's form says of a flow's parameters: a help text, and the bounds that its server checks beforehand.

The flow's own checks stay the authority, with one line for each refusal; these only spare a run that would be refused.
Prefect reads ``json_schema_extra`` alone, as it takes descriptions from docstrings of another style than ours.
"""

from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo

from dpca_tasks.mechanisms.subspace import MECHANISMS, REFERENCES


def _shown(description: str, **rules: Any) -> FieldInfo:
    field: FieldInfo = Field(json_schema_extra={"description": description, **rules})
    return field


# Of a fit
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
Mechanism = Annotated[str, _shown("How noise is added.", enum=sorted(MECHANISMS | REFERENCES))]
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

# Of an ingest
Sources = Annotated[str | list[str], _shown("@NAME: where dataset NAME was last ingested from by hand; or files.")]
NewName = Annotated[str, _shown("The dataset's name; each run makes a new snapshot of it.", minLength=1)]
Population = Annotated[str | None, _shown("Whose budget pays for releases; the dataset's name by default.")]
Features = Annotated[int | None, _shown("Declared columns; text and triplets need it, or names.", minimum=1)]
RecordsAtMost = Annotated[int | None, _shown("Public bound on the number of records.", minimum=1)]
Density = Annotated[float | None, _shown("Public share of entries that are not 0: speed alone.", minimum=0, maximum=1)]
BlockValues = Annotated[int | None, _shown("Stored values a block: memory and speed, nothing else.", minimum=1)]
StoredType = Annotated[str | None, _shown("Stored type, such as float32; the source's by default.")]
Format = Annotated[str | None, _shown("Format of the source, where its name does not tell.")]
Columns = Annotated[dict[str, str] | None, _shown("Columns of triplets: row, column, value.")]
FeatureNames = Annotated[str | None, _shown("File of column names or item ids, one a line.")]
PublicItems = Annotated[bool, _shown("The item list is public: take it from the rows.")]
UnitColumn = Annotated[str | None, _shown("Column that says whose row it is.")]
Units = Annotated[str | None, _shown(".npy file that says whose row each is.")]
RowsPerUnit = Annotated[int | None, _shown("Keep the first rows of each individual.", minimum=1)]
Scale = Annotated[str | None, _shown("File of public factors of the columns, one a line.")]
OnError = Annotated[str, _shown("Stop at a bad row, or leave bad rows out.", enum=["fail", "quarantine"])]
SharedRows = Annotated[bool, _shown("Insist on rows that another population holds already.")]
Header = Annotated[bool | None, _shown("Whether CSV and TSV begin with column names; refused if in doubt.")]
Resume = Annotated[bool, _shown("Go on where a killed ingest of the same source stopped.")]

# Of a reproduction
Runs = Annotated[int, _shown("Runs whose mean is compared.", minimum=1)]
Mechanisms = Annotated[list[str] | None, _shown("Whose cases to run; all when left out.")]
