"""The user's declarations about a source, such as its schema and the roles of its columns.

No function in this module reads a row of the source.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpca.errors import Invalid
from dpca.schemas.schema import Schema, written_text
from storage.formats.batch import check_features
from storage.formats.registry import named

ROLES = ("row", "column", "value")

_FROM_DATA = ("auto", "std", "max", "minmax", "standard", "mean", "norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Public facts about a source, declared by the user.

    Attributes
    ----------
    n_features : int or None
        Number of columns. If it is None, it is the number of `names`, or the file's format states it.
    names : tuple of str or None
        Names of the columns, in order. For triplets, a name is the column's id in the file, and its position is the
        column's number.
    format : str or None
        A name in `storage.formats.registry.FORMATS`. If it is None, the suffix of the file name determines the format.
    columns : tuple of str
        For a table of triplets, the names of the three columns that contain the row, the column and the value.
    columns_named : bool
        Whether the user named the columns of triplets, so that a table without these columns is refused.
    value_named : bool
        Whether the user named the value column of triplets. If not, and the table lacks this column, every triplet has
        the value 1.
    unit_column : str or None
        The column of a table that contains the id of each row's individual.
    delimiter : str or None
        The character between fields of CSV or TSV, or ``::``. If it is None, the format determines it.
    header : bool or None
        Whether the first line of CSV or TSV contains the column names. Without a header, columns are named 0, 1, 2, ...
        If it is None, the first line is read as names, and the file is refused if this line looks like a row.
    drop_others : bool
        Whether columns that `names` does not list are left out of a table with one column per feature. If not, such a
        table is refused.
    schema : Schema or None
        The declared meaning and encoding of each column of a raw table, and the dialect of its text. The features are
        then the encoded columns.
    is_unattended : bool
        Whether the ingest is unattended, so that no row may influence how other rows are read. The columns of a text
        without a header then come from declarations, not from the first row.
    """

    n_features: int | None = None
    names: tuple[str, ...] | None = None
    format: str | None = None
    columns: tuple[str, str, str] = ROLES
    columns_named: bool = False
    value_named: bool = False
    unit_column: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    drop_others: bool = False
    schema: Schema | None = None
    is_unattended: bool = False

    def __post_init__(self) -> None:
        """Refuse declarations that contradict each other."""
        if self.format is not None:
            named(self.format)
        if self.delimiter is not None:
            written_text(delimiter=self.delimiter)
        if self.n_features is not None:
            check_features(self.n_features)
        if self.names is not None:
            check_features(len(self.names))
            if self.n_features not in (None, len(self.names)):
                raise Invalid(
                    f"there are {len(self.names)} feature names for {self.n_features} features; declare as many "
                    "features as names"
                )

    @property
    def width(self) -> int | None:
        """Declared number of columns, from `names` or `n_features`; None if neither was declared."""
        return len(self.names) if self.names is not None else self.n_features

    @classmethod
    def of(
        cls,
        *,
        n_features: int | None = None,
        feature_names: Path | None = None,
        format: str | None = None,  # noqa: A002, the word users know
        columns: Mapping[str, str] | None = None,
        unit_column: str | None = None,
        delimiter: str | None = None,
        header: bool | None = None,
        schema: Schema | None = None,
        is_unattended: bool = False,
    ) -> Self:
        """Build the declarations from the user's options and files.

        Parameters
        ----------
        n_features, format, unit_column, delimiter, header, schema, is_unattended
            See the attributes with the same names.
        feature_names : Path or None
            A UTF-8 text file with one name per line, without duplicates.
        columns : mapping or None
            Names of the columns of triplets by role, such as ``{"row": "user", "column": "item", "value": "rating"}``.
            A role that is left out keeps the default name, which is the name of the role.

        Raises
        ------
        Invalid
            If a value is out of range, or a file cannot be used.
        """
        named = dict(columns or {})
        if not named.keys() <= set(ROLES):
            raise Invalid(
                f"the roles in columns are {', '.join(sorted(named))}; the allowed roles are {', '.join(ROLES)}; "
                "correct the roles"
            )
        chosen = tuple(named.get(role, role) for role in ROLES)
        if len({*chosen, unit_column}) < len(ROLES) + 1:
            raise Invalid("a column of the table has two roles; choose another column for one of them")
        return cls(
            n_features=n_features,
            names=None if feature_names is None else read_names(feature_names),
            format=format,
            columns=(chosen[0], chosen[1], chosen[2]),
            columns_named=bool(named),
            value_named="value" in named,
            unit_column=unit_column,
            delimiter=delimiter,
            header=header,
            schema=schema,
            is_unattended=is_unattended,
        )


def read_names(path: Path) -> tuple[str, ...]:
    """Read the names of columns from a UTF-8 text file with one name per line.

    Raises
    ------
    Invalid
        If the file cannot be read, or a name is empty or occurs twice.
    """
    with _declared_file(path, "feature names"):
        text = path.read_text(encoding="utf-8-sig")
    names = tuple(text.removesuffix("\n").split("\n")) if text else ()
    seen: set[str] = set()
    for line, name in enumerate(names, start=1):
        if not name or name in seen:
            fault = "occurs twice" if name else "is empty"
            raise Invalid(f"line {line} of the feature names in {path} {fault}; names must be unique, one per line")
        seen.add(name)
    check_features(len(names))
    return names


def read_scale(path: str | Path, *, n_features: int) -> NDArray[np.float64]:
    """Read the public factors of the columns from a text file with one positive number per line.

    Raises
    ------
    Invalid
        If `path` is a word such as "std", which requests factors computed from the data. Also if the file does not
        contain `n_features` positive finite numbers.
    """
    if str(path).lower() in _FROM_DATA:
        raise Invalid(
            f"scale={str(path)!r} would be computed from the rows, and so reveal them outside the budget; give a file "
            "of public factors, or release the scale with a separate mechanism"
        )
    path = Path(path)
    with _declared_file(path, "scale"):
        lines = path.read_text(encoding="utf-8-sig").split()
        factors = np.array([float(line) for line in lines], dtype=np.float64)
    if len(factors) != n_features or not (np.isfinite(factors) & (factors > 0)).all():
        raise Invalid(f"scale {path} must hold {n_features} positive finite numbers, one for each feature; correct it")
    return factors


@contextmanager
def _declared_file(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not text of the expected kind"
        raise Invalid(f"{what} {path} cannot be read ({reason}); give a text file with one entry per line") from None
