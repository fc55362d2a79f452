r"""Find the lines of delimited text that are no row.

A field in double quotes may hold the delimiter and doubled quotes, but no line break. Without an `Extent` each line is
judged by its own bytes: a quote that is not closed ends with its line, and the next line is a row again. With an
`Extent` quotes are followed from line to line: a record with a line break in quotes is one bad row, with all its lines.

>>> text = b'1,"a,b"\n1,"a\n1\n'
>>> [reason_of(verdict) for verdict in judge_lines(text, n_fields=2, delimiter=",", quote='"').tolist() if verdict]
['does not close a quote; close or drop it', 'has another number of fields than the header; correct or drop it']
>>> text = b'1,"a\n2,3\nb"\n4,5\n'
>>> judge_lines(text, n_fields=2, delimiter=",", quote='"', extent=Extent()).tolist() == [OPENED, INSIDE, INSIDE, ROW]
True
"""

import re
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

ROW, BLANK, INSIDE, OPENED, _QUOTE, _BEHIND, _WIDTH, _RETURN, _ENCODING = range(9)
NO_ROWS = (BLANK, INSIDE)
"""The verdicts on lines that hold no row: blank ones, and further lines of a record."""
_REASONS = {
    OPENED: "has a quote that is not closed on its line; close it, or write the text without line breaks",
    _QUOTE: "does not close a quote; close or drop it",
    _BEHIND: "has text behind a closing quote; double each quote inside quotes",
    _WIDTH: "has another number of fields than the header; correct or drop it",
    _RETURN: "holds a carriage return; end lines in LF or CRLF",
    _ENCODING: "is not {}, or too long for a row; convert the file",
}
_ALONE = re.compile(rb"\r(?!\n)")
_NEWLINE, _CARRIAGE, _SPACE, _TAB = (ord(sign) for sign in "\n\r \t")


@dataclass(slots=True, kw_only=True)
class Extent:
    """The quote that is open where the text so far ends.

    Attributes
    ----------
    is_open : bool, whether there is one
    is_lost : bool, whether the end of its record cannot be known
    line, character : int, where it was opened, each from 1
    field : int, in which field of its record, from 0
    """

    is_open: bool = False
    is_lost: bool = False
    line: int = 0
    character: int = 0
    field: int = 0


def judge_lines(
    text: bytes,
    *,
    n_fields: int,
    delimiter: str,
    quote: str | None,
    extent: Extent | None = None,
    first_line: int = 1,
) -> NDArray[np.uint8]:
    """Return a verdict on each line: `ROW`, one of `NO_ROWS`, or one that `reason_of` puts into words.

    Parameters
    ----------
    text : bytes
        Whole lines, the last newline included; lines that are not UTF-8 are no rows.
    n_fields : int
        Fields of a row.
    delimiter, quote : str, quote may be None
    extent : Extent or None
        How the text before ended, which is updated; once it is lost, verdicts mean nothing. None judges each line
        alone.
    first_line : int
        The number of the first line.

    Guarantees
    ----------
    Without an extent the verdict on a line depends on that line alone. With one, no line inside quotes is a row, by
    either of two readings: a quote is closed by the next one that is not doubled, or by the next one that is not
    doubled and ends a field.
    """
    octets = np.frombuffer(text, dtype=np.uint8)
    verdicts = np.empty(text.count(b"\n"), dtype=np.uint8)
    signs, before = (ord(delimiter), -1 if quote is None else ord(quote)), Extent() if extent is None else extent
    is_open, is_lost, (line, at, field) = _judge(
        octets, verdicts, n_fields, signs, extent is not None, before.is_open, before.field
    )
    if extent is not None:
        extent.is_open, extent.is_lost = bool(is_open), bool(is_lost)
        if line >= 0:
            start = text.rfind(b"\n", 0, at) + 1
            extent.line, extent.field = first_line + int(line), int(field)
            extent.character = len(text[start:at].decode(errors="replace")) + 1
        if is_lost:
            return verdicts
    alone = b"\r" in text and _ALONE.search(text) is not None
    if alone or not (text.isascii() or _is_text(text)):
        for at, line in enumerate(text.split(b"\n")[:-1]):
            if verdicts[at] == INSIDE:
                continue
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


@njit(cache=True, nogil=True, inline="always")
def _is_blank(byte):  # type: ignore[no-untyped-def]
    return byte in (_SPACE, _TAB, _CARRIAGE)


@njit(cache=True, nogil=True)
def _ends_field(text, at, delimiter):  # type: ignore[no-untyped-def]
    """Return whether a delimiter or the end of the line follows, perhaps after blanks."""
    while _is_blank(text[at]) and text[at] != delimiter:
        at += 1
    return text[at] == delimiter or text[at] == _NEWLINE


@njit(cache=True, nogil=True)
def _judge(text, verdicts, n_fields, signs, follows, is_open, field):  # type: ignore[no-untyped-def]
    """Write the verdict of each line: (whether a quote is open, whether its record is lost, its line, byte and field).

    Two readings go side by side. In the plain one, that of Arrow's parser, a quote opens a field at its first byte
    alone, and the next one that is not doubled closes it. In the strict one blanks may come before it, and it is
    closed where the field ends. Where they differ at the end of a line, or a record of several lines holds text behind
    a closing quote, the end of the record is unknown.
    """
    delimiter, quote = signs
    at, line = 0, 0
    opened = (-1, -1, field)
    while at < len(text):
        start, fields, quotes = at, opened[2] + 1 if is_open else 1, 0
        inside, plain, strict = is_open, is_open, is_open
        at_start, blank, behind, broken, loose = True, True, False, False, False
        second_plain, second_strict = False, False  # of two quotes that mean one
        while text[at] != _NEWLINE:
            byte = text[at]
            if byte == quote:
                quotes += 1
                is_doubled = text[at + 1] == quote
                if second_plain:
                    second_plain = False
                elif plain:
                    second_plain = is_doubled
                    plain = is_doubled
                    behind = not is_doubled
                elif at_start:
                    plain = True
                    opened = (line, at, fields - 1)
                elif behind:
                    broken = True
                if second_strict:
                    second_strict = False
                elif strict:
                    second_strict = is_doubled
                    if not is_doubled and _ends_field(text, at + 1, delimiter):
                        strict = False
                    elif not is_doubled:
                        loose = True
                elif blank:
                    strict = True
                    opened = (line, at, fields - 1)
                at_start, blank = False, False
            elif byte == delimiter:
                if not plain:
                    fields += 1
                    at_start, behind = True, False
                blank = not strict
            else:
                if not _is_blank(byte):
                    broken = broken or (behind and not plain)
                    blank = False
                at_start = False
            at += 1
        length = at - start
        if follows and (plain != strict or ((loose or broken) and (plain or inside))):
            return True, True, opened
        is_open = follows and plain
        if inside:
            verdicts[line] = INSIDE
        elif length == 0 or (length == 1 and text[start] == _CARRIAGE):
            verdicts[line] = BLANK
        elif is_open:
            verdicts[line] = OPENED
        elif plain or quotes % 2 == 1:
            verdicts[line] = _QUOTE
        elif broken:
            verdicts[line] = _BEHIND
        elif fields != n_fields:
            verdicts[line] = _WIDTH
        else:
            verdicts[line] = ROW
        at += 1
        line += 1
    return is_open, False, opened
