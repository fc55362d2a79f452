"""Generation of the reference page of the ``dpca`` command: a section for each subcommand, a row for each option."""

from collections.abc import Iterator
from typing import Any

HEAD = """# The dpca command

Exit codes: 0 success, 1 an error in one line, 2 wrong usage, 3 a release that the budget refused. With `--json` one
object goes to stdout, and all other output goes to stderr. `dpca --version` prints the version. This page is
generated from the command.
"""


def reference(command: Any, name: str = "dpca") -> str:
    """Return the reference page of a command and all its subcommands, as Markdown.

    Parameters
    ----------
    command : typer's command
        The top-level command.
    name : str
        The words that the user types to call ``command``.
    """
    return "\n".join((HEAD, *_sections(command, name)))


def _sections(command: Any, name: str) -> Iterator[str]:
    for sub in getattr(command, "commands", {}).values():
        path = f"{name} {sub.name}"
        if hasattr(sub, "commands"):
            yield from _sections(sub, path)
            continue
        yield f"## {path}\n"
        yield f"{sub.help}\n"
        yield "| argument or option | meaning | default |\n|---|---|---|"
        yield from (_row(parameter) for parameter in sub.params if parameter.name != "help")
        yield ""


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    spelled = " ".join(f"`{spelling}`" for spelling in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    unset = parameter.default in (None, False, ())
    default = "required" if parameter.required else "" if unset else f"`{parameter.default}`"
    meaning = (parameter.help or "").replace("|", "\\|")
    return f"| {spelled} | {meaning} | {default} |"
