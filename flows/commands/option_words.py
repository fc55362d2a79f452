"""Spelling of options on the command line: flags, ``--on/--off`` pairs, numbers with bounds, and names by role."""

from typing import Annotated, Any

import typer

from storage.datasets.ingest_options import OptionField


def command_option(option: OptionField) -> Any:
    """Return the type of an option as a command's parameter."""
    flag, meaning = f"--{option.name.replace('_', '-')}", option.meaning
    if option.kind is bool:
        return Annotated[bool, typer.Option(flag, help=meaning.help)]
    if option.kind == bool | None:
        return Annotated[option.kind, typer.Option(f"{flag}/--no-{flag[2:]}", help=meaning.help)]
    if option.kind == dict[str, str] | None:
        return Annotated[option.kind, typer.Option(flag, help=meaning.help, parser=_roles, metavar="ROLE=NAME,...")]
    return Annotated[option.kind, typer.Option(flag, help=meaning.help, min=meaning.minimum, max=meaning.maximum)]


def _roles(text: str) -> dict[str, str]:
    """Read ``row=USER,column=ITEM``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(role and name for role, _, name in pairs):
        raise typer.BadParameter("write row=NAME,column=NAME,value=NAME, or some of them", param_hint="--columns")
    return {role.strip(): name for role, _, name in pairs}
