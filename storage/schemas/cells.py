"""Cells of a table, exactly as numbers or text: what cannot be one becomes null, and no value is rounded unseen."""

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import BadSource

_EXACT = 1 << 53  # float64 holds every integer up to here
_EPOCH = datetime(1970, 1, 1).toordinal()
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
#: Patterns of the text that is a number of each kind.
_NUMERALS = {
    pa.float64(): r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$",
    pa.int64(): r"^(-?0*[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15})$",
}


def cast_cells(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast exactly; a value that cannot be cast becomes null."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = _valid_text(array)
    if array.type == kind:
        return array
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:
        raise BadSource(f"a column holds {array.type}; it must be {kind}; convert it") from None
    except pa.ArrowInvalid:
        return _cast_what_fits(array, kind)


def _cast_what_fits(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to int64 or float64 in one pass; values that cannot be cast, however many, become null."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        text = pc.ascii_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMERALS[kind])
        return pc.if_else(fits, text, pa.scalar(None, text.type)).cast(kind)
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    found = array.cast(kind, safe=False)
    if pa.types.is_integer(array.type) and pa.types.is_integer(kind):
        fits = pc.greater_equal(found, 0)  # uint64 alone is wider
    else:
        number = pc.abs(array.cast(pa.float64(), safe=False))
        fits = pc.and_(pc.equal(found.cast(array.type, safe=False), array), pc.less_equal(number, _EXACT))
    return pc.if_else(fits, found, pa.scalar(None, kind))


def plain_cells(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array of plain cells: chunks joined, dictionaries written out, text without outer blanks."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = _valid_text(array)
    if is_text(array.type):
        array = pc.utf8_trim_whitespace(array.cast(pa.string()))
    return array


def _valid_text(array: pa.Array) -> pa.Array:
    """Return an array with null in place of text that is not UTF-8, which a file of columns may hold."""
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


def is_number(kind: pa.DataType) -> bool:
    """Return whether cells of this type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def number_cells(array: pa.Array, *, decimal: str = ".") -> pa.Array:
    """Return plain cells as float64; text that is no number with this decimal mark becomes null.

    Raises
    ------
    BadSource
        If the cells are neither numbers nor text.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.uint8()).cast(pa.float64())
    if is_number(kind):
        return array.cast(pa.float64(), safe=False)
    if not (is_text(kind) or pa.types.is_null(kind)):
        raise BadSource(f"it holds {kind}; numbers are numbers or text; convert it, or declare another kind")
    if decimal != "." and is_text(kind):
        point = pc.match_substring(array, ".")
        array = pc.if_else(point, pa.scalar(None, pa.string()), pc.replace_substring(array, decimal, "."))
    return cast_cells(array, pa.float64())


def word_cells(array: pa.Array) -> pa.Array:
    """Return plain cells as the words by which a schema names them; whole numbers without decimals.

    Raises
    ------
    BadSource
        If the cells are lists or the like.
    """
    kind = array.type
    if is_text(kind):
        return array
    if pa.types.is_floating(kind):
        number = array.cast(pa.float64())
        whole = pc.and_(pc.equal(pc.floor(number), number), pc.less(pc.abs(number), _EXACT))
        text = number.cast(pa.string())
        integers = pc.if_else(whole, number, pa.scalar(None, pa.float64())).cast(pa.int64())
        return pc.if_else(whole, integers.cast(pa.string()), text)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise BadSource(f"it holds {kind}; words are text or numbers; convert it, or declare another kind")
    return array.cast(pa.string())


def day_cells(array: pa.Array, formats: Sequence[str], *, timezone: str | None = None) -> pa.Array:
    """Return plain cells as days since 1970, float64; text that no format reads becomes null.

    An instant, which states its zone, is a day of `timezone`; without one, of UTC in a timestamp, and of its own zone
    in text.

    Raises
    ------
    BadSource
        If the cells are neither dates nor text.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.float64())
    if timezone is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
        array = pc.local_timestamp(array.cast(pa.timestamp(kind.unit, timezone)))
        kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        per_day = 1 if pa.types.is_date32(kind) else _A_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
        counts = array.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else array.cast(pa.int64())
        days = np.floor_divide(counts.fill_null(0).to_numpy(), per_day).astype(np.float64)
        return pa.array(days, mask=array.is_null().to_numpy(zero_copy_only=False))
    if not is_text(kind):
        raise BadSource(f"it holds {kind}; dates are dates, timestamps or text; convert it, or declare another kind")
    coded, zone = array.dictionary_encode(), None if timezone is None else ZoneInfo(timezone)
    days = pa.array([_day(text, formats, zone) for text in coded.dictionary.to_pylist()], pa.float64())
    return days.take(coded.indices)


def _day(text: str | None, formats: Sequence[str], zone: ZoneInfo | None) -> float | None:
    """Return the days since 1970 that a text means; Python's parser, unlike Arrow's, refuses the 31st of February."""
    for form in formats if text is not None else ():
        try:
            found = datetime.strptime(text or "", form)
            if zone is not None and found.tzinfo is not None:
                found = found.astimezone(zone)
            return float(found.toordinal() - _EPOCH)
        except (ValueError, OverflowError):
            continue
    return None
