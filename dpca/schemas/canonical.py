"""The canonical text of values and ids, which does not depend on the file format, the column type or the library.

*Casts.* Cells of a table are converted to plain arrays by exact casts. A value that cannot be cast exactly becomes
null; no value is rounded.

*Values.* The rules of a schema are applied only to the canonical text of a value, or to the number or day that this
text represents. So a value has the same encoding whether it comes from CSV, Parquet, a data frame or memory.

- Null, NaN, NaT and blank text are missing values.
- Text is stripped of surrounding blanks, and converted to the Unicode normal form C.
- A whole number is written in plain digits. Any other number is written as the shortest decimal that reads back as the
  same number in the number's precision. So 1, 1.0, 1.00 and 1e0 become ``1``, and 0.1 becomes ``0.1`` also in single
  precision. Text counts as a number if it is a decimal number without leading zeros or a leading plus. So ``007``
  remains a text, and is not 7.
- True and false, in any capitalization, become ``1`` and ``0``.
- A date is written as ``2020-01-05``, a time of day as ``12:30:00``, and a date with a time as ``2020-01-05 12:30:00``,
  in UTC if the time zone is known.

>>> canonical = Canonical(missing_texts=("-9",))
>>> canonical.words(pa.array(["1.00", "x", "007", "TRUE", "-9.0", ""])).to_pylist()
['1', 'x', '007', '1', None, None]
>>> canonical.words(pa.array([1.0, 1e16, 0.1, -9.0], pa.float32())).to_pylist()
['1', '10000000000000000', '0.1', None]

*Ids of individuals and items.* The same rules apply to every format, option and schema.

- Surrounding blanks are not part of an id.
- A whole number becomes its decimal digits: 7, 7.0, ``7.0`` and a decimal 7.00 are the id ``7``, and -0.0 is ``0``.
- All other texts are different ids if they differ at all: ``07``, ``+7`` and ``7e0`` are three ids other than ``7``.
  Capital letters, and letters that only look alike, also make different ids.
- Null, NaN, blank text, and the texts that NumPy and pandas write for a missing value (`NO_ID`) count as "no id".
- A number that is not whole counts as "no id". So does a float so large that its type no longer represents every whole
  number.
- Columns of booleans, dates, bytes or lists are refused as ids.

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

_EXACT = 1 << 53  # float64 represents every integer up to 2^53 exactly
_PLAIN = (pa.Bool8Type, pa.JsonType, pa.FixedShapeTensorType)
"""Arrow extension types whose stored values may be read as plain values without a change of meaning."""
#: Patterns of the text of a number of each type.
_NUMERALS = {
    pa.float64(): r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$",
    pa.int64(): r"^(-?0*[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15})$",
}


def cast_cells(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast the cells of a column to a type exactly; a value that cannot be cast exactly becomes null."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = _valid_text(array)
    if array.type == kind:
        return array
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    refusal = BadSource(f"a column holds {array.type}; it must be {kind}; convert it")
    # Arrow would read bytes as text, and times as bare integers
    if is_binary(array.type) or pa.types.is_temporal(array.type):
        raise refusal
    if pa.types.is_decimal(array.type):  # cast decimals through text, because Arrow rounds a direct cast incorrectly
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
    """Cast cells to int64 or float64 in one pass; a value that cannot be cast exactly becomes null."""
    if is_text(array.type):
        text = pc.ascii_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMERALS[kind])
        return pc.if_else(fits, text, pa.scalar(None, text.type)).cast(kind)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())  # cast half-precision floats exactly, because Arrow cannot compare them
    found = array.cast(kind, safe=False)
    if pa.types.is_integer(array.type) and pa.types.is_integer(kind):
        fits = pc.greater_equal(found, 0)  # only a uint64 can overflow int64, and then the cast gives a negative number
    else:
        number = pc.abs(array.cast(pa.float64(), safe=False))
        fits = pc.and_(pc.equal(found.cast(array.type, safe=False), array), pc.less_equal(number, _EXACT))
    return pc.if_else(fits, found, pa.scalar(None, kind))


def plain_cells(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one plain array, with chunks joined, dictionaries decoded, and text stripped of blanks."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        if not isinstance(array.type, _PLAIN):  # refuse, for example, pandas periods, which are stored as bare numbers
            raise BadSource(
                f"it holds {array.type.extension_name}, which is not supported; convert it to text, numbers or dates"
            )
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
    """Replace text by null if it is not valid UTF-8, because a columnar file may contain such text."""
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
    """Return whether an Arrow type is a type of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a type of bytes."""
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(each(kind) for each in kinds)


def is_number(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is an integer, floating-point or decimal type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_INTEGER = r"^(0|-?[1-9][0-9]{0,75})$"
_LARGEST = 1e76  # whole numbers up to 1e76, the limit of Arrow's widest decimal, are written in plain digits
_NUMERAL = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_ANY_NUMERAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_MOMENT = r"(([0-9]{4}-[0-9]{2}-[0-9]{2})[ T])?([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?"
_TRUE, _FALSE = "1", "0"
_ISO = "%Y-%m-%d"
_EPOCH = datetime(1970, 1, 1).toordinal()
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def word_of(text: str, *, decimal: str = ".") -> str:
    """Return the canonical text of a text value; `decimal` is the decimal mark of numbers in the text."""
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
    """Convert Python objects of mixed types to an Arrow array.

    The array has timestamps if all values are dates, lists if all values are lists, and texts otherwise. Arrow's own
    type inference is not used, because it rounds mixtures of numbers and crashes on some other mixtures.

    Parameters
    ----------
    values : sequence
        The objects. Each must be a text, number, boolean, date, time, list of numbers or missing value.
    decimal : str
        The decimal mark with which numbers are written as text.

    Raises
    ------
    TypeError
        If a value has another type.
    """
    given = [None if _is_missing(value) else value for value in values]
    kinds = {type(value) for value in given if value is not None}
    if kinds and all(issubclass(kind, date | np.datetime64) for kind in kinds):  # datetime is a subclass of date
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
    """Convert a date or datetime of any type to a naive datetime, in UTC if the value has a time zone."""
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
    """Conversion of plain cells (see `plain_cells`) to canonical texts, numbers and days, by the rules of one schema.

    Parameters
    ----------
    decimal : str
        The decimal mark of numbers in text.
    missing_texts : tuple of str
        The texts that mean a missing value. Other spellings of the same number or day also mean a missing value.
    """

    decimal: str = "."
    missing_texts: tuple[str, ...] = ()

    def words(self, cells: pa.Array) -> pa.Array:
        """Return the canonical text of each cell; null for a missing value.

        Raises
        ------
        BadSource
            If the cells are of a type that has no canonical text, such as lists, durations or bytes.
        """
        words = self._words(cells)
        return pc.if_else(pc.is_in(words, value_set=self._missing), pa.scalar(None, pa.string()), words)

    def places(self, cells: pa.Array, listed: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the index of each cell's value in a list of values (-1 if not listed), and a mask of missing cells.

        Raises
        ------
        BadSource
            If the cells are of a type that has no canonical text, such as lists, durations or bytes.
        """
        words, values = self.words(cells), [word_of(text, decimal=self.decimal) for text in listed]
        places = pc.index_in(words, value_set=pa.array(values, pa.string())).fill_null(-1)
        return places.to_numpy(zero_copy_only=False).astype(np.int64), _is_null(words)

    def numbers(self, cells: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Convert cells to numbers, and return them with a mask of missing cells.

        Text that is not a finite number becomes NaN or infinity. Unlike in canonical text, leading zeros and a leading
        plus are allowed: ``+007`` is 7.

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
        return numbers + 0.0, missing | np.isin(numbers, self._missing_numbers)  # adding 0.0 turns -0.0 into 0.0

    def days(
        self, cells: pa.Array, formats: Sequence[str], *, timezone: str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Convert cells to days since 1970-01-01, and return them with a mask of missing cells.

        Text that matches none of the formats becomes NaN. Numbers are parsed as text, for example 20200105 by
        ``%Y%m%d``. The time of day is ignored. A value with a time zone is first converted to `timezone`. If `timezone`
        is None, the day of a timestamp is the day in UTC, and the day of a text is the day in the zone that the text
        states.

        Raises
        ------
        BadSource
            If the cells are of a type that has no canonical text, such as lists, durations or bytes.
        """
        missing, kind = _is_null(cells), cells.type
        if timezone is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
            cells = pc.local_timestamp(cells.cast(pa.timestamp(kind.unit, timezone)))
            kind = cells.type
        ends = [_day(text, (*formats, _ISO), decimal=self.decimal) for text in self.missing_texts]
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):  # Arrow stores timestamps with a time zone in UTC
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
        """Convert cells to numbers; text that is not a finite number becomes NaN or infinity."""
        kind = cells.type
        if pa.types.is_boolean(kind):
            cells = cells.cast(pa.uint8())
        if pa.types.is_floating(kind):
            return _own_width(cells)
        if pa.types.is_decimal(kind):
            return _filled(cells.cast(pa.string()))  # cast decimals through text, as a direct cast rounds incorrectly
        if not (is_text(kind) or pa.types.is_null(kind)):
            if not is_number(cells.type):
                raise BadSource(
                    f"it holds {kind}; a numeric column must be stored as numbers or as text; convert it, or declare "
                    "another kind of column"
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
        """Return the canonical text of each cell, also of cells whose text means a missing value."""
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
                f"it holds {kind}; the values must be stored as text, numbers, booleans or dates; convert it, or "
                "declare another kind of column"
            )
        coded = pc.if_else(pa.array(_is_null(cells)), pa.scalar(None, kind), cells).dictionary_encode()
        if pa.types.is_float16(kind):
            numbers = [str(number) for number in coded.dictionary.to_numpy(zero_copy_only=False)]
        else:
            numbers = coded.dictionary.cast(pa.string())
        return _of_texts(pa.array(numbers, pa.string())).take(coded.indices)


def _of_texts(texts: pa.Array, *, decimal: str = ".") -> pa.Array:
    """Return the canonical texts of text cells.

    For speed, each distinct text is converted once, and only texts that may change are converted in Python.
    """
    coded = texts.dictionary_encode()
    words = pc.utf8_normalize(coded.dictionary, form="NFC")
    numeral = _NUMERAL.replace(r"\.", re.escape(decimal))
    others = pc.match_substring_regex(words, f"^({numeral}|(?i:true|false)|{_MOMENT})$")
    chosen = pc.and_not(others, pc.match_substring_regex(words, _INTEGER))
    changed = [word_of(text, decimal=decimal) for text in words.filter(chosen).to_pylist()]
    return pc.replace_with_mask(words, chosen, pa.array(changed, pa.string())).take(coded.indices)


def _own_width(cells: pa.Array) -> NDArray[np.float64]:
    """Convert floats of any precision to the float64 nearest to their shortest decimal; null becomes NaN.

    So 0.1 in single precision becomes 0.1, and not 0.10000000149.
    """
    if pa.types.is_float64(cells.type):
        return _filled(cells)
    numbers = cells.to_numpy(zero_copy_only=False)
    if pa.types.is_float16(cells.type):
        halves: NDArray[np.float64] = _halves()[numbers.astype(np.float16).view(np.uint16)]
        return halves
    return _filled(pa.array(numbers.astype(np.float32), pa.float32()).cast(pa.string()))


@lru_cache(maxsize=1)
def _halves() -> NDArray[np.float64]:
    """Return, for each half-precision number, the float64 nearest to its shortest decimal, indexed by its 16 bits."""
    return np.array([float(str(number)) for number in np.arange(1 << 16, dtype=np.uint16).view(np.float16)])


def _day(text: str, formats: Sequence[str], *, decimal: str, zone: ZoneInfo | None = None) -> float:
    """Parse a text as days since 1970-01-01, by Python's parser, because Arrow's accepts the 31st of February."""
    word = word_of(text, decimal=decimal)
    for one in dict.fromkeys((text, word, word.partition(" ")[0] if re.fullmatch(_MOMENT, word) else word)):
        for form in formats:
            try:
                day = datetime.strptime(one, form)
                if zone is not None and day.tzinfo is not None:
                    day = day.astimezone(zone)
            except (ValueError, OverflowError):
                continue
            if not one.isdigit() or day.strftime(form) == one:  # refuse digits from which a leading zero was lost
                return float(day.toordinal() - _EPOCH)
    return float("nan")


def _is_null(cells: pa.Array) -> NDArray[np.bool_]:
    return np.array(cells.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))


def _is_in(words: pa.Array, listed: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(words, value_set=pa.array(listed, pa.string())).to_numpy(zero_copy_only=False)
    return found


def _filled(cells: pa.Array) -> NDArray[np.float64]:
    """Return cells as a float64 array, with NaN for null."""
    return np.array(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


NO_ID = ("", "nan", "NaN", "None", "<NA>", "NaT")
"""The texts that count as "no id" in a column of ids."""
_WHOLE = r"^(-?[0-9]+){}0*$"
_EXACT_IDS = {pa.float16(): 1 << 11, pa.float32(): 1 << 24, pa.float64(): 1 << 53}
"""For each type of float, the bound up to which it represents every whole number."""


def id_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type, int64 or string, to which `id_cells` converts ids that are stored as type `kind`.

    Raises
    ------
    BadSource
        If values of type `kind` cannot be ids.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return pa.int64()
    if is_text(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind) or kind == pa.uint64():
        return pa.string()  # ids of these types become text, because int64 cannot hold all of them
    raise BadSource(f"ids are stored as {kind}; ids must be whole numbers or text; convert them")


def id_cells(array: pa.Array | pa.ChunkedArray, *, missing: Sequence[str] = NO_ID, decimal: str = ".") -> pa.Array:
    """Convert a column of ids to int64, or to text if the column's type can hold ids that int64 cannot.

    A cell that holds no id, such as a missing value, becomes null.

    Parameters
    ----------
    array : Arrow array
        The column of ids.
    missing : sequence of str
        The texts that count as "no id".
    decimal : str
        The decimal mark of numbers in text.

    Raises
    ------
    BadSource
        If values of the column's type cannot be ids.
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
