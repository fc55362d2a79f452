"""The kinds of columns that a schema may declare. Each kind defines the accepted values and the resulting features.

All declarations are public: ranges, lists of values and rules must be chosen from public knowledge, never from rows.

>>> age = Numeric(name="age", range=(0, 120), missing="category")
>>> age.features(), age.largest_square()
(('age', 'age=(missing)'), 1.0)
"""

import math
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

MAX_WIDTH = 1 << 16
"""The maximum number of features of an encoded table, each of which has a name."""

MISSING, OTHER = "(missing)", "(other)"


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text or text != text.strip():
        raise ValueError("must be one line of text without surrounding blanks")
    return text


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("YAML reads this word as true or false; quote it to use it as text")
    return repr(value) if isinstance(value, int | float) else value


def _day_format(text: str) -> str:
    day = datetime(2001, 2, 3, tzinfo=UTC)
    try:
        found = datetime.strptime(day.strftime(text), text).replace(tzinfo=UTC)
    except ValueError:
        found = None
    if found != day:
        raise ValueError("must be a date format with year, month and day, such as %d.%m.%Y")
    return text


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("must name a time zone, such as Europe/Berlin or UTC") from None
    return name


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must list each value once")
    if "" in values:
        raise ValueError("must not list the empty text, because an empty text is a missing value")
    return values


Name = Annotated[
    str,
    Field(min_length=1, max_length=1000),
    BeforeValidator(_as_text, json_schema_input_type=str | float),
    AfterValidator(_one_line),
]
Word = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | float), AfterValidator(_one_line)]
TimeZone = Annotated[str, AfterValidator(_zone)]
DayFormat = Annotated[str, AfterValidator(_day_format)]
Words = Annotated[tuple[Word, ...], Field(min_length=1, max_length=MAX_WIDTH), AfterValidator(_distinct)]
Outside = Annotated[
    Literal["clip", "refuse"],
    Field(description="What to do with a value outside the range: clip it to the range, or refuse the row."),
]
Scale = Literal["unit", "symmetric", "none"]


class Declared(BaseModel):
    """Base class of all parts of a schema; values are never converted to another type, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Value[T](Declared):
    """A public value that replaces missing values."""

    value: T


class Column(Declared):
    """The declaration of one column of a table."""

    name: Name
    """The name in the header; `a.b` is field b of struct a. Without a header: the name to assign."""

    def features(self) -> tuple[str, ...]:
        """Return the names of the features that the column becomes."""
        return ()

    def largest_square(self) -> float:
        """Return the maximum contribution of the column to the squared norm of an encoded row."""
        return 0.0

    def is_exclusive(self) -> bool:
        """Return whether at most one of the column's features differs from 0 in a row."""
        return False

    def is_filled(self) -> bool:
        """Return whether exactly one of the column's features differs from 0 in each row, and is 1."""
        return False


class _Encoded(Column):
    missing: Any = "refuse"

    def _has_missing(self) -> bool:
        return bool(self.missing == "category")

    def features(self) -> tuple[str, ...]:
        return (self.name, *([f"{self.name}={MISSING}"] if self._has_missing() else []))

    def largest_square(self) -> float:
        return 1.0

    def is_exclusive(self) -> bool:
        return True


class Numeric(_Encoded):
    """A column of numbers with a public range, by which the numbers are scaled."""

    kind: Literal["numeric"] = "numeric"
    range: tuple[FiniteFloat, FiniteFloat]
    """Public: the lowest and the highest value of the range."""
    scale: Scale = "unit"
    """unit: the range becomes 0 to 1; symmetric: -1 to 1; none: values are not scaled."""
    outside: Outside = "clip"
    missing: Literal["refuse", "category"] | Value[FiniteFloat] = "refuse"
    """refuse: the row is refused; category: one more feature marks missing values; or a public replacement value."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.range
        if not (low < high and math.isfinite(high - low)):
            raise ValueError("the range must go from a lower to a higher number")
        if isinstance(self.missing, Value) and not low <= self.missing.value <= high:
            raise ValueError("the value that replaces missing entries must be in the range")
        return self

    def largest_square(self) -> float:
        """Return the largest square of the feature: 1 if scaled, or else the larger square of the two range ends.

        If missing values get an additional feature, the result is at least 1.
        """
        return 1.0 if self.scale != "none" else max(*(end * end for end in self.range), float(self._has_missing()))


class Date(_Encoded):
    """A column of dates with a public range, by which the days are scaled; the time of day is ignored."""

    kind: Literal["date"] = "date"
    range: tuple[date, date]
    """Public: the first and the last day of the range."""
    formats: Annotated[tuple[DayFormat, ...], Field(min_length=1)] = ("%Y-%m-%d",)
    """The formats of dates in text, tried in order, such as %d.%m.%Y; %z reads an offset from UTC."""
    timezone: TimeZone | None = None
    """The time zone that determines the day of timestamps with a zone, such as Europe/Berlin; UTC if left out."""
    scale: Literal["unit", "symmetric"] = "unit"
    """unit: the range becomes 0 to 1; symmetric: -1 to 1."""
    outside: Outside = "clip"
    missing: Literal["refuse", "category"] | Value[date] = "refuse"
    """refuse: the row is refused; category: one more feature marks missing values; or a public replacement date."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        first, last = self.range
        if not first < last:
            raise ValueError("the range must go from an earlier to a later day")
        if isinstance(self.missing, Value) and not first <= self.missing.value <= last:
            raise ValueError("the date that replaces missing entries must be in the range")
        return self


class Boolean(_Encoded):
    """A column of yes or no, encoded as 1 and 0."""

    kind: Literal["boolean"] = "boolean"
    when_true: Words = ("true", "1")
    """Public: the texts that mean yes."""
    when_false: Words = ("false", "0")
    """Public: the texts that mean no; a row with any other text is refused."""
    missing: Literal["refuse", "category"] | Value[bool] = "refuse"
    """refuse: the row is refused; category: one more feature marks missing values; or a public replacement value."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if set(self.when_true) & set(self.when_false):
            raise ValueError("a text cannot mean both yes and no")
        return self


class Categorical(_Encoded):
    """A column whose values are in a public list. Each listed value becomes a feature: 1 if the row has it, else 0."""

    kind: Literal["categorical"] = "categorical"
    values: Words
    """Public: the list of values."""
    others: Literal["category", "zero", "refuse"]
    """Values not listed: category: one more feature (other); zero: 0 in every feature; refuse: the row is refused."""
    missing: Literal["refuse", "category", "zero"] | Value[Word] = "refuse"
    """Missing values. refuse: the row is refused; category: one more feature, (missing); zero: 0 in every feature; or a
    listed value that replaces them."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.missing, Value) and self.missing.value not in self.values:
            raise ValueError("the value that replaces missing entries must be listed among the values")
        return self

    def features(self) -> tuple[str, ...]:
        """Return one feature name per listed value, and the names of the categories for other and missing values."""
        more = [OTHER] * (self.others == "category") + [MISSING] * self._has_missing()
        return tuple(f"{self.name}={value}" for value in [*self.values, *more])

    def is_filled(self) -> bool:
        """Return whether exactly one feature is 1 in each row, that is, no rule sets all of the features to 0."""
        return "zero" not in (self.others, self.missing)


class Vector(_Encoded):
    """A column of lists of numbers, all of the same length, such as embeddings (`list<float>` in Parquet)."""

    kind: Literal["vector"] = "vector"
    length: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    """Public: the length of the list."""
    range: tuple[FiniteFloat, FiniteFloat] | None = None
    """Public: the range of each number, scaled as for a numeric column; alternatively declare a norm."""
    norm: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Public: the largest L2 norm, which is scaled to 1; alternatively declare a range."""
    scale: Scale = "unit"
    """The scale of a range, as for a numeric column."""
    outside: Outside = "clip"
    missing: Literal["refuse", "category", "zero"] = "refuse"
    """refuse: the row is refused; category: one more feature; zero: zeros; also if only one number is missing."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.range is None) == (self.norm is None):
            raise ValueError("declare either a range for each number or a norm, but not both")
        if self.range is not None and not (
            self.range[0] < self.range[1] and math.isfinite(self.range[1] - self.range[0])
        ):
            raise ValueError("the range must go from a lower to a higher number")
        return self

    def features(self) -> tuple[str, ...]:
        """Return one feature name per number of the list, and the name of the category for missing values if any."""
        numbers = tuple(f"{self.name}[{at}]" for at in range(self.length))
        return (*numbers, *([f"{self.name}={MISSING}"] if self._has_missing() else []))

    def is_exclusive(self) -> bool:
        """Return whether there is one feature only."""
        return len(self.features()) == 1

    def largest_square(self) -> float:
        """Return the largest sum of squares of the features.

        The result is 1 if a norm is declared. For a range, the sum is largest if all numbers are at the end of the
        range with the larger square.
        """
        if self.range is None:
            return 1.0
        end = 1.0 if self.scale != "none" else max(end * end for end in self.range)
        return max(self.length * end, float(self._has_missing()))


class Id(Column):
    """The ids of individuals, integers or text. The column becomes no feature. All rows with one id are one record."""

    kind: Literal["id"] = "id"


class Drop(Column):
    """A column that is ignored. It may be absent from a file that has a header."""

    kind: Literal["drop"] = "drop"


AnyColumn = Annotated[
    Numeric | Categorical | Boolean | Date | Vector | Id | Drop,
    Field(discriminator="kind"),
]

KINDS = ("numeric", "categorical", "boolean", "date", "vector", "id", "drop")
MISSING_RULES = {
    "numeric": "refuse, category, or a public number such as {value: 30}",
    "categorical": "refuse, category, zero, or one of the listed values such as {value: WORD}",
    "boolean": "refuse, category, {value: true} or {value: false}",
    "date": "refuse, category, or a public date such as {value: 2000-01-31}",
    "vector": "refuse, category or zero",
}
"""The possible values of `missing` for each kind, for messages."""
