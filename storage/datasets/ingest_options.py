"""Options of an ingest, with their types, defaults, help texts and bounds.

Each option is declared once, as a field of `IngestOptions`. The fields define the options of the command ``dpca dataset
ingest``, and the parameters and the web form of the flow ``ingest_dataset``. A new option needs one field here and the
code that uses it.

>>> IngestOptions(features=123, on_error="quarantine").features
123
>>> from storage.options import options_of
>>> [option.name for option in options_of(IngestOptions) if option.handling.is_file]
['feature_names', 'table_schema', 'units', 'scale']
"""

from typing import Annotated

from pydantic import Field

from dpca.errors import Invalid
from dpca.privacy_unit import PrivacyUnit
from storage.formats.registry import DUPLICATES, named, option_help
from storage.options import Handling, option_record

_FROM_SCHEMA = (
    *(
        "features",
        "feature_names",
        "public_items",
        "columns",
        "duplicates",
        "keep_zeros",
        "unit_column",
        "header",
        "delimiter",
    ),
    "scale",
)
_UNNAMED = "unit"  # default name of the ids of individuals, if they come from a separate file
TRIPLETS_ALONE = (
    "keep_zeros applies only to triplets (CSV, TSV, Parquet) and Matrix Market entries; omit it, or give triplets"
)
ENTRIES_ALONE = (
    "duplicates applies only to formats that list the entries of a row: triplets, Matrix Market, svmlight and csr; "
    "omit it, because a table or array has each column once"
)


@option_record
class IngestOptions:
    """All options of an ingest, except the source and the name of the dataset.

    All values are plain JSON values. The description of a field is its help text on the command line and in the form.

    Raises
    ------
    Invalid
        If a value is outside the allowed range of its field.
    """

    population: Annotated[
        str | None, Field(description="Population whose budget is charged; named like the dataset by default.")
    ] = None
    features: Annotated[
        int | None,
        Field(
            description="Number of columns; svmlight, CSV, TSV and triplets need it, or a file of column names.", ge=1
        ),
    ] = None
    feature_names: Annotated[
        str | None,
        Field(description="Text file of column names or item ids, one per line, in order."),
        Handling(is_file=True),
    ] = None
    public_items: Annotated[
        bool, Field(description="Declare that the list of item ids is public, and take it from the triplets.")
    ] = False
    table_schema: Annotated[
        str | None,
        Field(
            description="YAML file with a schema, which declares each raw column of a table; see `dpca schema draft`."
        ),
        Handling(is_file=True),
    ] = None
    format: Annotated[str | None, Field(description=option_help())] = None
    columns: Annotated[
        dict[str, str] | None,
        Field(
            description="Columns of triplets by role, such as row=USER,column=ITEM,value=RATING; without a "
            "value column, each value is 1."
        ),
    ] = None
    duplicates: Annotated[
        str | None,
        Field(
            description="How to combine several entries for one row and column: sum (default for triplets), mean or "
            "last, or refuse (the row is bad; default for svmlight and csr); an unattended ingest of triplets requires "
            "it."
        ),
        Handling(choices=DUPLICATES),
    ] = None
    keep_zeros: Annotated[
        bool, Field(description="Store triplets of value 0, such as ratings of 0; by default they are dropped.")
    ] = False
    public: Annotated[
        bool,
        Field(
            description="Declare that all rows are public: releases may start from them, with --like-public, without "
            "noise and without a charge."
        ),
    ] = False
    unit_column: Annotated[
        str | None,
        Field(description="Column of a table with the id of each row's individual; one individual is one record."),
    ] = None
    delimiter: Annotated[
        str | None, Field(description="Character between fields of CSV and TSV, or ::; a comma or a tab by default.")
    ] = None
    header: Annotated[
        bool | None,
        Field(
            description="Whether CSV and TSV begin with column names; without them the names are 0, 1, 2 ...; by "
            "default ambiguous files are refused."
        ),
    ] = None
    units: Annotated[
        str | None,
        Field(description=".npy file with the id of each row's individual, in order."),
        Handling(is_file=True),
    ] = None
    unit_name: Annotated[
        str | None,
        Field(
            description="Name of the ids of individuals, as in the budget; by default the name of their "
            "column, or unit."
        ),
    ] = None
    max_rows_per_unit: Annotated[
        int | None,
        Field(description="Keep only this many rows of each individual, the first ones; all rows by default.", ge=1),
    ] = None
    scale: Annotated[
        str | None,
        Field(description="Text file of public positive factors of the columns, one per line."),
        Handling(is_file=True),
    ] = None
    records_at_most: Annotated[
        int | None,
        Field(
            description="Public bound on the number of records; more are refused, or kept if bad rows are quarantined.",
            ge=1,
        ),
    ] = None
    density: Annotated[
        float | None,
        Field(description="Public share of entries that are not 0: affects only speed, not results.", ge=0, le=1),
    ] = None
    block_nnz: Annotated[
        int | None, Field(description="Largest number of stored values in a block; about a million by default.", ge=1)
    ] = None
    dtype: Annotated[
        str | None, Field(description="Type of stored values, such as float32; the source's by default.")
    ] = None
    on_error: Annotated[
        str | None,
        Field(
            description="quarantine: a record with a bad row becomes empty, and a private report lists its rows. fail: "
            "stop at the first bad row, the default of attended ingests; message, exit code and Prefect state reveal "
            "that row."
        ),
        Handling(choices=("fail", "quarantine")),
    ] = None
    unattended: Annotated[
        bool,
        Field(
            description="Ingest as schedules do: no record stops the ingest, and faults of rows are reported only in "
            "the private report."
        ),
    ] = False
    resume: Annotated[
        bool, Field(description="Continue after the last complete block of a killed ingest of the same request.")
    ] = False
    allow_shared_rows: Annotated[
        bool,
        Field(description="Accept the dataset even if another population already has the same rows."),
        Handling(is_offered=False),
    ] = False

    def __post_init__(self) -> None:
        """Refuse an unknown file format."""
        if self.format is not None:
            named(self.format)

    @property
    def quarantines(self) -> bool:
        """True if a record with a bad row becomes empty; if false, the first bad row ends the ingest with an error."""
        return self.unattended or self.on_error == "quarantine"

    def _check_unattended(self) -> None:
        """Refuse options of an unattended ingest that would make public facts depend on rows.

        Public facts are whether the ingest succeeds, and which columns the dataset has.
        """
        if self.on_error == "fail":
            raise Invalid(
                "on_error=fail stops a run at one bad row, but the outcome of an unattended run is public and must not "
                "depend on a row; omit the option, or ingest by hand with `dpca dataset ingest`"
            )
        if self.public_items:
            raise Invalid(
                "public_items takes the columns from the rows, but the columns of an unattended run are public and "
                "must not depend on rows; list the items in a file of feature names"
            )

    def check_together(self) -> None:
        """Refuse options that contradict each other. Call this after all options that are files have been set.

        Raises
        ------
        Invalid
            If two options contradict each other.
        """
        if self.unattended:
            self._check_unattended()
        if self.table_schema is not None:
            declared = [name for name in _FROM_SCHEMA if getattr(self, name) != getattr(DEFAULTS, name)]
            if declared:
                raise Invalid(
                    f"{declared[0]} is given together with a schema, which declares the columns completely; omit it, "
                    "or write it into the schema"
                )
        if self.table_schema is None:
            self.check_units()
        chosen = None if self.format is None else named(self.format)
        if chosen is not None and not chosen.keeps_zeros and self.keep_zeros:
            raise Invalid(TRIPLETS_ALONE)
        if chosen is not None and not chosen.repeats and self.duplicates is not None:
            raise Invalid(ENTRIES_ALONE)
        if self.public_items and self.feature_names is not None:
            raise Invalid("items come from the rows or from a file, not both; omit public_items or feature_names")

    def check_units(self) -> None:
        """Refuse options about the ids of individuals that contradict each other.

        If there is a schema, call this only after the schema's column of ids is entered as ``unit_column``.

        Raises
        ------
        Invalid
            If two options contradict each other.
        """
        if self.unit_column is not None and self.units is not None:
            raise Invalid("ids of individuals come from a column or from a file, not both; omit unit_column or units")
        for name in ("max_rows_per_unit", "unit_name"):
            if getattr(self, name) is not None and self.unit_column is None and self.units is None:
                raise Invalid(f"{name} requires the individual of each row; give unit_column or units")
        _ = self.unit

    @property
    def unit(self) -> PrivacyUnit:
        """Privacy unit of the dataset, which is one row, or an individual with a bounded or unbounded number of rows.

        Raises
        ------
        Invalid
            If the name of the ids is not an allowed name.
        """
        if self.unit_column is None and self.units is None:
            return PrivacyUnit()
        named = self.unit_column or _UNNAMED if self.unit_name is None else self.unit_name
        try:
            return PrivacyUnit.requested(named, self.max_rows_per_unit)
        except Invalid as error:
            raise Invalid(f"{error} `--unit-name` gives the ids another name than their column has.") from None


DEFAULTS = IngestOptions()
