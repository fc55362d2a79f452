"""Spelling of options on the command line: flags, ``--on/--off`` pairs, numbers with bounds, entries of mappings."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from storage.options import Meaning, OptionField


def command_option(option: OptionField) -> Any:
    """Return the type of an option as a command's parameter."""
    meaning = option.meaning
    flag = option.flag
    if meaning.is_argument:
        return Annotated[option.kind, typer.Argument(help=meaning.help)]
    if option.is_settings:
        read = _pairs_of(flag)
        return Annotated[list[str] | None, typer.Option(flag, help=meaning.help, metavar="KEY=VALUE", callback=read)]
    if option.kind is bool:
        return Annotated[bool, typer.Option(flag, help=meaning.help)]
    if option.kind == bool | None:
        return Annotated[option.kind, typer.Option(f"{flag}/--no-{flag[2:]}", help=meaning.help)]
    if option.kind == dict[str, str] | None:
        return Annotated[option.kind, typer.Option(flag, help=meaning.help, parser=_roles, metavar="ROLE=NAME,...")]
    if option.kind == float | str:
        return Annotated[str, typer.Option(flag, help=meaning.help, parser=_number_or_word, metavar="NUMBER|WORD")]
    if option.kind == int | str:
        return Annotated[str, typer.Option(flag, help=meaning.help, parser=_count_or_word, metavar="COUNT|auto")]
    low, high = _closed_bounds(meaning)
    return Annotated[option.kind, typer.Option(flag, help=meaning.help, min=low, max=high)]


def _closed_bounds(meaning: Meaning) -> tuple[int | None, int | None]:
    """Return the bounds that a command line checks: an interval with an open end is left to the job."""
    is_open = meaning.above is not None or meaning.below is not None
    return (None, None) if is_open else (meaning.minimum, meaning.maximum)


def _pairs_of(flag: str) -> Callable[[list[str] | None], list[tuple[str, str]]]:
    """Return the reader of ``KEY=VALUE``, given once for each key."""

    def read(texts: list[str] | None) -> list[tuple[str, str]]:
        pairs = [text.partition("=") for text in texts or ()]
        if not all(sign for _, sign, _ in pairs) or len({key for key, _, _ in pairs}) < len(pairs):
            raise typer.BadParameter(f"write {flag} KEY=VALUE, each key once.")
        return [(key, value) for key, _, value in pairs]

    return read


def _roles(text: str) -> dict[str, str]:
    """Read ``row=USER,column=ITEM``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(role and name for role, _, name in pairs):
        raise typer.BadParameter("write row=NAME,column=NAME,value=NAME, or some of them", param_hint="--columns")
    return {role.strip(): name for role, _, name in pairs}


def _count_or_word(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text} is no count; give a whole number, at least 1, or auto.")
    return int(text)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
