"""Cells of a table as plain arrays, and their exact casts: what cannot be cast becomes null, and nothing is rounded."""

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import BadSource

_EXACT = 1 << 53  # float64 holds every integer up to here
_PLAIN = (pa.Bool8Type, pa.JsonType, pa.FixedShapeTensorType)
"""Extension types that are stored as what they mean."""
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
    refusal = BadSource(f"a column holds {array.type}; it must be {kind}; convert it")
    if is_binary(array.type) or pa.types.is_temporal(array.type):  # Arrow would parse some of it, or return ticks
        raise refusal
    if pa.types.is_decimal(array.type):  # by its text, which alone is rounded correctly
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
    """Cast to int64 or float64 in one pass; values that cannot be cast, however many, become null."""
    if is_text(array.type):
        text = pc.ascii_trim_whitespace(array)
        fits = pc.match_substring_regex(text, _NUMERALS[kind])
        return pc.if_else(fits, text, pa.scalar(None, text.type)).cast(kind)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())  # exact; Arrow compares no halves
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


def is_binary(kind: pa.DataType) -> bool:
    """Return whether cells of this type are bytes."""
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(each(kind) for each in kinds)


def is_number(kind: pa.DataType) -> bool:
    """Return whether cells of this type are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
