r"""Find the lines of delimited text that are no row: each line is judged by its own bytes.

A field in double quotes may hold the delimiter and doubled quotes, but no line break. So a quote that is not closed
ends with its line, and the next line is a row again.

>>> text = b'1,"a,b"\n1,"a\n1\n'
>>> [reason_of(verdict) for verdict in judge_lines(text, n_fields=2, delimiter=",", quote='"').tolist() if verdict]
['does not close a quote; close or drop it', 'has another number of fields than the header; correct or drop it']
"""

import re

import numpy as np
from numba import njit
from numpy.typing import NDArray

ROW, BLANK, _QUOTE, _WIDTH, _RETURN, _ENCODING = range(6)
_REASONS = {
    _QUOTE: "does not close a quote; close or drop it",
    _WIDTH: "has another number of fields than the header; correct or drop it",
    _RETURN: "holds a carriage return; end lines in LF or CRLF",
    _ENCODING: "is not {}, or too long for a row; convert the file",
}
_ALONE = re.compile(rb"\r(?!\n)")
_NEWLINE, _CARRIAGE = ord("\n"), ord("\r")


def judge_lines(text: bytes, *, n_fields: int, delimiter: str, quote: str | None) -> NDArray[np.uint8]:
    """Return a verdict on each line: `ROW`, `BLANK`, or one that `reason_of` puts into words.

    Parameters
    ----------
    text : bytes
        Whole lines, the last newline included; lines that are not UTF-8 are no rows.
    n_fields : int
        Fields of a row.
    delimiter, quote : str, quote may be None

    Guarantees
    ----------
    The verdict on a line depends on that line alone.
    """
    octets = np.frombuffer(text, dtype=np.uint8)
    verdicts = np.empty(text.count(b"\n"), dtype=np.uint8)
    _judge(octets, verdicts, n_fields, ord(delimiter), -1 if quote is None else ord(quote))
    alone = b"\r" in text and _ALONE.search(text) is not None
    if alone or not (text.isascii() or _is_text(text)):
        for at, line in enumerate(text.split(b"\n")[:-1]):
            if _ALONE.search(line + b"\n") is not None:
                verdicts[at] = _RETURN
            if not _is_text(line):
                verdicts[at] = _ENCODING
    return verdicts


def reason_of(verdict: int, *, encoding: str = "utf-8") -> str:
    """Return why a line is no row; ``encoding`` is how the text was encoded."""
    return _REASONS[verdict].format(encoding.upper())


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@njit(cache=True, nogil=True)
def _judge(text, verdicts, n_fields, delimiter, quote):  # type: ignore[no-untyped-def]
    """Write the verdict of each line; a quote opens a field at its beginning alone, as in Arrow's parser."""
    at, line = 0, 0
    while at < len(text):
        start, fields, quotes = at, 1, 0
        at_start, quoted = True, False
        while text[at] != _NEWLINE:
            byte = text[at]
            if byte == quote:
                quotes += 1
            if quoted:
                if byte == quote:
                    if text[at + 1] == quote:
                        quotes += 1
                        at += 1
                    else:
                        quoted = False
            elif byte == delimiter:
                fields += 1
                at_start = True
                at += 1
                continue
            elif at_start and byte == quote:
                quoted = True
            at_start = False
            at += 1
        length = at - start
        if length == 0 or (length == 1 and text[start] == _CARRIAGE):
            verdicts[line] = BLANK
        elif quoted or quotes % 2 == 1:
            verdicts[line] = _QUOTE
        elif fields != n_fields:
            verdicts[line] = _WIDTH
        else:
            verdicts[line] = ROW
        at += 1
        line += 1
