"""The ids of individuals and items, the same whatever holds them: one rule for every format, option and schema.

- Blanks around an id are no part of it.
- A whole number is its decimal digits: 7, 7.0, ``7.0`` and a decimal 7.00 are the id ``7``, and -0.0 is ``0``.
- Everything else stays apart: ``07``, ``+7``, ``7e0``, capitals, and letters that only look alike.
- No id: null, NaN, blank text, the words that NumPy and pandas write for it (`NO_ID`), a number that is not whole, and
  a float beyond the whole numbers that its type tells apart.
- True and False, dates, bytes and lists are no ids.

>>> id_cells(pa.array([" 7", "7.0", "07", "", "7.5"])).to_pylist()
['7', '7', '07', None, '7.5']
>>> id_cells(pa.array([7.0, 7.5, None])).to_pylist()
[7, None, None]
"""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import BadSource
from storage.schemas.cells import is_text, plain_cells

NO_ID = ("", "nan", "NaN", "None", "<NA>", "NaT")
"""The texts that name no individual."""
_WHOLE = r"^(-?[0-9]+){}0*$"
_EXACT = {pa.float16(): 1 << 11, pa.float32(): 1 << 24, pa.float64(): 1 << 53}
"""Whole numbers up to here have no other one that becomes the same float."""


def id_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `id_cells` gives for ids that are stored as another one: int64 or string.

    Raises
    ------
    BadSource
        If such values are no ids.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return pa.int64()
    if is_text(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind) or kind == pa.uint64():
        return pa.string()  # which holds what int64 may not
    raise BadSource(f"ids are stored as {kind}; ids are whole numbers or text; convert them")


def id_cells(array: pa.Array | pa.ChunkedArray, *, missing: Sequence[str] = NO_ID, decimal: str = ".") -> pa.Array:
    """Return ids as int64, or as text where the type holds other ones; null where there is none.

    Parameters
    ----------
    array : Arrow array
    missing : sequence of str
        The texts that are no id.
    decimal : str
        The mark before decimals in text.

    Raises
    ------
    BadSource
        If such values are no ids.
    """
    wanted, cells = id_type(array.type), plain_cells(array)
    if pa.types.is_floating(cells.type):
        numbers, most = cells.cast(pa.float64()), _EXACT[cells.type]
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
