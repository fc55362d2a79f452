"""The public facts about the columns of rows, and the constraints that a schema imposes on their second moments."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpca.schemas.frames import meaning
from dpca_tasks.errors import InvalidInput
from dpca_tasks.refinement.schema_constraints import Constraints
from storage.datasets.snapshot_reader import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The public facts about the columns of a table: their number, and their names and schema if declared.

    ``table`` is the name of the table in messages.
    """

    table: str
    n_features: int
    names: Sequence[str] | None = None
    encoder: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, rows: Dataset) -> "Columns":
        """Return the columns of a stored snapshot."""
        return cls(
            table=f"dataset {rows.manifest.dataset!r}",
            n_features=rows.n_features,
            names=rows.feature_names(),
            encoder=rows.encoder(),
        )

    @property
    def named(self) -> dict[str, Any]:
        """The declared names, as the manifest of an artifact states them."""
        return {} if self.names is None else {"feature_names": list(self.names)}

    @property
    def constraints(self) -> Constraints | None:
        """The constraints that the schema imposes on second moments; None if it imposes none."""
        return None if self.encoder is None else constraints_of(self.encoder)


def check_same_columns(columns: Columns, other: Columns, *, rule: str, named: bool = False) -> None:
    """Refuse columns that differ from other columns; ``rule`` states in a message which columns are required.

    Names are compared if both sides declare them. With ``named``, they also differ if only one side declares them.

    Raises
    ------
    InvalidInput
        When the numbers of columns, the declared names, their order, or the schemas differ.
    """
    if columns.n_features != other.n_features:
        raise InvalidInput(
            f"{columns.table} has {columns.n_features} columns, but {other.table} has {other.n_features}; {rule}."
        )
    names = list(columns.names or ()), list(other.names or ())
    if names[0] != names[1] and (named or all(names)):
        raise InvalidInput(
            f"the columns of {columns.table} have other names, or another order, than those of {other.table}; {rule}."
        )
    if meaning(columns.encoder) != meaning(other.encoder):
        raise InvalidInput(
            f"the columns of {columns.table} were encoded by another schema than those of {other.table}; {rule}."
        )


def constraints_of(encoder: Mapping[str, Any]) -> Constraints | None:
    """Return the constraints that a schema, as plain JSON values, imposes on second moments; None if it imposes none.

    The features of a column are a group if at most one of them differs from 0 in a row. The group is filled if exactly
    one of them differs from 0 in every row. Only a categorical column without a rule ``zero`` can be filled.
    """
    from pydantic import TypeAdapter

    from dpca.schemas.kinds import AnyColumn

    kind: TypeAdapter[AnyColumn] = TypeAdapter(AnyColumn)
    columns = [kind.validate_json(json.dumps(column)) for column in encoder["columns"]]
    ends = list(itertools.accumulate((len(column.features()) for column in columns), initial=0))
    groups = [
        (pair, column.is_filled())
        for pair, column in zip(itertools.pairwise(ends), columns, strict=True)
        if column.is_filled() or (column.is_exclusive() and pair[1] - pair[0] > 1)
    ]
    found = Constraints(
        n_features=ends[-1], groups=tuple(pair for pair, _ in groups), filled=tuple(full for _, full in groups)
    )
    return found if found.excludes else None
