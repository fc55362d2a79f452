"""The canonical text of a value and of an id, equal in every format, type and library.

*Casts.* Cells of a table become plain arrays by exact casts: a value that cannot be cast becomes null, and nothing is
rounded.

*Values.* Every rule of a schema is decided only on the canonical text, or on the number or day that it represents. So a
value has the same encoding from CSV, Parquet, a data frame or memory.

- Null, NaN, NaT and blank text are missing.
- Text has no surrounding blanks, and is in the Unicode normal form C.
- A number is an integer in plain digits, or else the shortest decimal that reads back as the same number in its
  precision. So 1, 1.0, 1.00 and 1e0 are ``1``, and 0.1 is ``0.1`` also in single precision. Text is a number if it is a
  decimal number without leading zeros or a leading plus: ``007`` is a code, and not 7.
- True and false, in any capitalization, are 1 and 0.
- A date is ``2020-01-05``, and a time of day ``12:30:00``. A date with a time is ``2020-01-05 12:30:00``, in UTC if its
  time zone is known.

>>> canonical = Canonical(missing_texts=("-9",))
>>> canonical.words(pa.array(["1.00", "x", "007", "TRUE", "-9.0", ""])).to_pylist()
['1', 'x', '007', '1', None, None]
>>> canonical.words(pa.array([1.0, 1e16, 0.1, -9.0], pa.float32())).to_pylist()
['1', '10000000000000000', '0.1', None]

*Ids of individuals and items.* One rule holds for every format, option and schema.

- Surrounding blanks are not part of an id.
- A whole number becomes its decimal digits: 7, 7.0, ``7.0`` and a decimal 7.00 are the id ``7``, and -0.0 is ``0``.
- All other texts stay distinct: ``07``, ``+7``, ``7e0``, capital letters, and letters that only look alike.
- Null, NaN, blank text, and the texts that NumPy and pandas write for a missing value (`NO_ID`) are no id.
- A number that is not whole is no id, nor is a float beyond the range in which its type represents every whole number.
- True and False, dates, bytes and lists are not accepted as ids.

>>> id_cells(pa.array([" 7", "7.0", "07", "", "7.5"])).to_pylist()
['7', '7', '07', None, '7.5']
>>> id_cells(pa.array([7.0, 7.5, None])).to_pylist()
[7, None, None]
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpca.errors import BadSource

_EXACT = 1 << 53  # float64 represents every integer up to here
_PLAIN = (pa.Bool8Type, pa.JsonType, pa.FixedShapeTensorType)
"""Extension types whose storage has the same meaning as the type."""
#: Patterns of the text of a number of each type.
_NUMERALS = {
    pa.float64(): r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$",
    pa.int64(): r"^(-?0*[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15})$",
}


def cast_cells(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast cells exactly; a value that cannot be cast becomes null."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = _valid_text(array)
    if array.type == kind:
        return array
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    refusal = BadSource(f"a column holds {array.type}; it must be {kind}; convert it")
    if is_binary(array.type) or pa.types.is_temporal(array.type):  # Arrow would parse some of these, or return ticks
        raise refusal
    if pa.types.is_decimal(array.type):  # as text, because only this cast rounds correctly
        array = array.cast(pa.string())
        array = array if kind == pa.float64() else pc.replace_substring_regex(array, r"\.0*$", "")
    elif pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:
        raise refusal from None
    except pa.ArrowInvalid:
        return _cast_what_fits(array, kind)


def _cast_what_fits(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to int64 or float64 in one pass; values that cannot be cast become null."""
    if is_text(array.type):
        text = pc.ascii_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMERALS[kind])
        return pc.if_else(fits, text, pa.scalar(None, text.type)).cast(kind)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())  # exact; Arrow cannot compare half floats
    found = array.cast(kind, safe=False)
    if pa.types.is_integer(array.type) and pa.types.is_integer(kind):
        fits = pc.greater_equal(found, 0)  # only uint64 is wider
    else:
        number = pc.abs(array.cast(pa.float64(), safe=False))
        fits = pc.and_(pc.equal(found.cast(array.type, safe=False), array), pc.less_equal(number, _EXACT))
    return pc.if_else(fits, found, pa.scalar(None, kind))


def plain_cells(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array of plain cells, with chunks joined, dictionaries decoded, and text trimmed."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        if not isinstance(array.type, _PLAIN):  # such as a period, whose numbers have a unit
            raise BadSource(f"it holds {array.type.extension_name}; convert it to text, numbers or dates")
        array = array.storage
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = _valid_text(array)
    if is_text(array.type):
        array = pc.utf8_trim_whitespace(array.cast(pa.string()))
    return array


def _valid_text(array: pa.Array) -> pa.Array:
    """Replace text that is not valid UTF-8, which a columnar file may contain, by null."""
    if not is_text(array.type):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        octets = array.cast(pa.binary()).to_pylist()
        return pa.array([None if word is None else _decoded(word) for word in octets], pa.string())
    return array


def _decoded(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None


def is_text(kind: pa.DataType) -> bool:
    """Return whether cells of this type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether cells of this type are bytes."""
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(each(kind) for each in kinds)


def is_number(kind: pa.DataType) -> bool:
    """Return whether cells of this type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_INTEGER = r"^(0|-?[1-9][0-9]{0,75})$"
_LARGEST = 1e76  # integers up to here are exact, as in Arrow's widest decimal
_NUMERAL = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_ANY_NUMERAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_MOMENT = r"(([0-9]{4}-[0-9]{2}-[0-9]{2})[ T])?([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?"
_TRUE, _FALSE = "1", "0"
_ISO = "%Y-%m-%d"
_EPOCH = datetime(1970, 1, 1).toordinal()
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def word_of(text: str, *, decimal: str = ".") -> str:
    """Return the canonical form of a text with this decimal mark."""
    text = unicodedata.normalize("NFC", text.strip())
    if text.lower() in ("true", "false"):
        return _TRUE if text.lower() == "true" else _FALSE
    if decimal == "." or "." not in text:
        numeral = text.replace(decimal, ".")
        if re.fullmatch(_NUMERAL, numeral):
            return _number_word(numeral)
    if moment := re.fullmatch(_MOMENT, text):
        day, time, fraction = moment[2], moment[3], (moment[4] or "").rstrip("0").rstrip(".")
        return day if day and (time, fraction) == ("00:00:00", "") else f"{day or ''} {time}{fraction}".strip()
    return text


def _number_word(numeral: str) -> str:
    number = float(numeral)
    if number == 0:
        return "0"
    if not number.is_integer() or abs(number) >= _LARGEST:
        return repr(number) if math.isfinite(number) else numeral
    exact = Decimal(numeral)
    return str(int(exact if exact == exact.to_integral_value() else number))


def array_of(values: Sequence[Any], *, decimal: str) -> pa.Array:
    """Return Python objects of mixed types as an Arrow array of dates or lists if all are such, else of texts.

    Arrow's inference rounds mixtures of numbers, and crashes on some other mixtures.

    Parameters
    ----------
    values : sequence
    decimal : str
        The decimal mark of numbers when they are written as text.

    Raises
    ------
    TypeError
        If a value is no text, number, boolean, date, list of numbers or missing value.
    """
    given = [None if _is_missing(value) else value for value in values]
    kinds = {type(value) for value in given if value is not None}
    if kinds and all(issubclass(kind, date | np.datetime64) for kind in kinds):  # a datetime is a date
        moments = [None if value is None else _moment(value) for value in given]
        is_instant = any(isinstance(value, datetime) and value.tzinfo is not None for value in given)
        return pa.array(moments, pa.timestamp("us", "UTC" if is_instant else None))
    if kinds and all(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
        widths = {getattr(value, "dtype", None) for value in given if value is not None}
        if len(widths) == 1 and getattr(width := widths.pop(), "kind", "O") in "iuf":
            return pa.array(given, pa.list_(pa.from_numpy_dtype(width)))
        lists = [None if value is None else [*map(_item, value)] for value in given]
        return pa.array(lists, pa.list_(pa.float64()))
    return pa.array([None if value is None else _text_of(value, decimal) for value in given], pa.string())


def _item(value: Any) -> float | None:
    if isinstance(value, str | bytes):
        raise TypeError
    return None if _is_missing(value) else float(str(value)) if isinstance(value, np.floating) else float(value)


def _is_missing(value: Any) -> bool:
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    if isinstance(value, float | np.floating | Decimal):
        return bool(value != value)  # NaN
    return value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType")


def _moment(value: Any) -> datetime:
    """Return a date of any type as a naive datetime, in UTC if its time zone is known."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


def _text_of(value: Any, decimal: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating | Decimal):
        return str(value).replace(".", decimal)
    if isinstance(value, date | np.datetime64):
        return str(_moment(value))
    if isinstance(value, time):
        return str(value)
    raise TypeError


@dataclass(frozen=True)
class Canonical:
    """The canonical values of plain cells (`dpca.schemas.canonical.plain_cells`) under one schema.

    Parameters
    ----------
    decimal : str
        The decimal mark in text.
    missing_texts : tuple of str
        The texts that mean a missing value; every other spelling of the same number or day does so too.
    """

    decimal: str = "."
    missing_texts: tuple[str, ...] = ()

    def words(self, cells: pa.Array) -> pa.Array:
        """Return the canonical texts of cells; null for a missing value.

        Raises
        ------
        BadSource
            If the cells have a type without a canonical text, such as lists, durations or binary data.
        """
        words = self._words(cells)
        return pc.if_else(pc.is_in(words, value_set=self._missing), pa.scalar(None, pa.string()), words)

    def places(self, cells: pa.Array, listed: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the index of each cell among listed values (-1 for other values), and a mask of missing cells.

        Raises
        ------
        BadSource
            As `words`.
        """
        words, values = self.words(cells), [word_of(text, decimal=self.decimal) for text in listed]
        places = pc.index_in(words, value_set=pa.array(values, pa.string())).fill_null(-1)
        return places.to_numpy(zero_copy_only=False).astype(np.int64), _is_null(words)

    def numbers(self, cells: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return cells as numbers, and a mask of missing cells; text that is no number becomes NaN or infinity.

        Leading zeros and a leading plus are ignored here: ``+007`` is 7.

        Raises
        ------
        BadSource
            If the cells are neither numbers, booleans nor text.
        """
        numbers, missing = self._numbers(cells), _is_null(cells)
        if is_text(cells.type) and len(rest := np.flatnonzero(~np.isfinite(numbers) & ~missing)):
            words = self._words(cells.take(pa.array(rest)))
            numbers[rest[_is_in(words, [_TRUE])]], numbers[rest[_is_in(words, [_FALSE])]] = 1.0, 0.0
            missing[rest] = _is_in(words, self._missing)
        return numbers + 0.0, missing | np.isin(numbers, self._missing_numbers)  # turns -0 into 0

    def days(
        self, cells: pa.Array, formats: Sequence[str], *, timezone: str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return cells as days since 1970, and a mask of missing cells; text that matches no format becomes NaN.

        The time of day is ignored. Numbers are read as text, such as 20200105 by ``%Y%m%d``. A value with a time zone
        is converted to its day in `timezone`. Without `timezone`, a timestamp uses the day in UTC, and text the day in
        its stated zone.

        Raises
        ------
        BadSource
            If the cells have a type without a canonical text.
        """
        missing, kind = _is_null(cells), cells.type
        if timezone is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
            cells = pc.local_timestamp(cells.cast(pa.timestamp(kind.unit, timezone)))
            kind = cells.type
        ends = [_day(text, (*formats, _ISO), decimal=self.decimal) for text in self.missing_texts]
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):  # in UTC if another zone is stated
            per_day = 1 if pa.types.is_date32(kind) else _A_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
            counts = cells.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else cells.cast(pa.int64())
            days = np.floor_divide(counts.fill_null(0).to_numpy(), per_day).astype(np.float64)
        else:
            zone = None if timezone is None else ZoneInfo(timezone)
            coded = (cells if is_text(kind) else self._words(cells)).dictionary_encode()
            texts, at = coded.dictionary, coded.indices.fill_null(0).to_numpy()
            read = [_day(text, formats, decimal=self.decimal, zone=zone) for text in texts.to_pylist()]
            days = np.array([*read, np.nan])[np.where(missing, len(read), at)]
            missing = missing | np.append(_is_in(self._words(texts), self._missing), True)[at]
        return days, missing | np.isin(days, [day for day in ends if not np.isnan(day)])

    @cached_property
    def _missing(self) -> pa.Array:
        return pa.array(["", *(word_of(text, decimal=self.decimal) for text in self.missing_texts)], pa.string())

    @cached_property
    def _missing_numbers(self) -> NDArray[np.float64]:
        numbers = self._numbers(plain_cells(pa.array(self.missing_texts, pa.string())))
        return numbers[np.isfinite(numbers)]

    def _numbers(self, cells: pa.Array) -> NDArray[np.float64]:
        """Return cells as numbers; text that is no number becomes NaN or infinity."""
        kind = cells.type
        if pa.types.is_boolean(kind):
            cells = cells.cast(pa.uint8())
        if pa.types.is_floating(kind):
            return _own_width(cells)
        if pa.types.is_decimal(kind):
            return _filled(cells.cast(pa.string()))  # rounds correctly, unlike Arrow's cast to float64
        if not (is_text(kind) or pa.types.is_null(kind)):
            if not is_number(cells.type):
                raise BadSource(
                    f"it holds {kind}; a number must be stored as a number or as text; convert it, or declare another "
                    "kind"
                )
            return _filled(cells)
        if self.decimal != "." and is_text(kind):
            point = pc.match_substring(cells, ".")
            cells = pc.if_else(point, pa.scalar(None, cells.type), pc.replace_substring(cells, self.decimal, "."))
        try:
            return _filled(cells)
        except pa.ArrowInvalid:
            fits = pc.match_substring_regex(cells, _ANY_NUMERAL)
            return _filled(pc.if_else(fits, pc.utf8_ltrim(cells, characters="+"), pa.scalar(None, cells.type)))

    def _words(self, cells: pa.Array) -> pa.Array:
        """Return the canonical texts of cells, including those that mean a missing value."""
        kind = cells.type
        if is_text(kind):
            return _of_texts(cells, decimal=self.decimal)
        if pa.types.is_null(kind) or pa.types.is_integer(kind):
            return cells.cast(pa.string())
        if pa.types.is_boolean(kind):
            return cells.cast(pa.uint8()).cast(pa.string())
        if pa.types.is_date(kind):
            return pc.strftime(cells, format=_ISO)
        if pa.types.is_time(kind):
            return _of_texts(cells.cast(pa.string()))
        if pa.types.is_timestamp(kind):
            return _of_texts(pc.strftime(cells.cast(pa.timestamp(kind.unit)), format=f"{_ISO} %H:%M:%S"))
        if not is_number(kind):
            raise BadSource(
                f"it holds {kind}; a word must be stored as text or as a number; convert it, or declare another kind"
            )
        coded = pc.if_else(pa.array(_is_null(cells)), pa.scalar(None, kind), cells).dictionary_encode()
        if pa.types.is_float16(kind):
            numbers = [str(number) for number in coded.dictionary.to_numpy(zero_copy_only=False)]
        else:
            numbers = coded.dictionary.cast(pa.string())
        return _of_texts(pa.array(numbers, pa.string())).take(coded.indices)


def _of_texts(texts: pa.Array, *, decimal: str = ".") -> pa.Array:
    """Return the canonical forms of texts; each distinct text is handled once, in Python only if it may change."""
    coded = texts.dictionary_encode()
    words = pc.utf8_normalize(coded.dictionary, form="NFC")
    numeral = _NUMERAL.replace(r"\.", re.escape(decimal))
    others = pc.match_substring_regex(words, f"^({numeral}|(?i:true|false)|{_MOMENT})$")
    chosen = pc.and_not(others, pc.match_substring_regex(words, _INTEGER))
    changed = [word_of(text, decimal=decimal) for text in words.filter(chosen).to_pylist()]
    return pc.replace_with_mask(words, chosen, pa.array(changed, pa.string())).take(coded.indices)


def _own_width(cells: pa.Array) -> NDArray[np.float64]:
    """Return floating-point numbers as the float64 nearest to their shortest decimals; null becomes NaN."""
    if pa.types.is_float64(cells.type):
        return _filled(cells)
    numbers = cells.to_numpy(zero_copy_only=False)
    if pa.types.is_float16(cells.type):
        halves: NDArray[np.float64] = _halves()[numbers.astype(np.float16).view(np.uint16)]
        return halves
    return _filled(pa.array(numbers.astype(np.float32), pa.float32()).cast(pa.string()))


@lru_cache(maxsize=1)
def _halves() -> NDArray[np.float64]:
    """Return the shortest decimals of all half-precision numbers, indexed by their bits."""
    return np.array([float(str(number)) for number in np.arange(1 << 16, dtype=np.uint16).view(np.float16)])


def _day(text: str, formats: Sequence[str], *, decimal: str, zone: ZoneInfo | None = None) -> float:
    """Parse a text as days since 1970; unlike Arrow's parser, Python's refuses the 31st of February."""
    word = word_of(text, decimal=decimal)
    for one in dict.fromkeys((text, word, word.partition(" ")[0] if re.fullmatch(_MOMENT, word) else word)):
        for form in formats:
            try:
                day = datetime.strptime(one, form)
                if zone is not None and day.tzinfo is not None:
                    day = day.astimezone(zone)
            except (ValueError, OverflowError):
                continue
            if not one.isdigit() or day.strftime(form) == one:  # otherwise a number has lost a leading zero
                return float(day.toordinal() - _EPOCH)
    return float("nan")


def _is_null(cells: pa.Array) -> NDArray[np.bool_]:
    return np.array(cells.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))


def _is_in(words: pa.Array, listed: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(words, value_set=pa.array(listed, pa.string())).to_numpy(zero_copy_only=False)
    return found


def _filled(cells: pa.Array) -> NDArray[np.float64]:
    """Return cells as float64, with NaN for null."""
    return np.array(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


NO_ID = ("", "nan", "NaN", "None", "<NA>", "NaT")
"""The texts that are no id."""
_WHOLE = r"^(-?[0-9]+){}0*$"
_EXACT_IDS = {pa.float16(): 1 << 11, pa.float32(): 1 << 24, pa.float64(): 1 << 53}
"""The bounds up to which no two whole numbers become the same float."""


def id_type(kind: pa.DataType) -> pa.DataType:
    """Return the type, int64 or string, that `id_cells` returns for ids stored as `kind`.

    Raises
    ------
    BadSource
        If values of this type cannot be ids.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return pa.int64()
    if is_text(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind) or kind == pa.uint64():
        return pa.string()  # holds ids that int64 cannot
    raise BadSource(f"ids are stored as {kind}; ids must be whole numbers or text; convert them")


def id_cells(array: pa.Array | pa.ChunkedArray, *, missing: Sequence[str] = NO_ID, decimal: str = ".") -> pa.Array:
    """Return ids as int64, or as text if the type can hold other ids; null for no id.

    Parameters
    ----------
    array : Arrow array
    missing : sequence of str
        The texts that are no id.
    decimal : str
        The decimal mark in text.

    Raises
    ------
    BadSource
        If values of this type cannot be ids.
    """
    wanted, cells = id_type(array.type), plain_cells(array)
    if pa.types.is_floating(cells.type):
        numbers, most = cells.cast(pa.float64()), _EXACT_IDS[cells.type]
        fits = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), float(most)))
        return pc.if_else(fits, numbers, pa.scalar(None, pa.float64())).cast(wanted)
    if wanted == pa.int64():
        return cells.cast(wanted)
    texts = cells.cast(wanted)
    mark = "." if pa.types.is_decimal(cells.type) else decimal
    if pc.any(pc.match_substring(texts, mark)).as_py():
        texts = pc.replace_substring_regex(texts, _WHOLE.format(re.escape(mark)), r"\1")
    if pa.types.is_decimal(cells.type):
        texts = pc.if_else(pc.match_substring_regex(texts, "^-?[0-9]+$"), texts, pa.scalar(None, wanted))
    texts = pc.if_else(pc.equal(texts, "-0"), "0", texts)
    return pc.if_else(pc.is_in(texts, value_set=pa.array(missing, wanted)), pa.scalar(None, wanted), texts)
