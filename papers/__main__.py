"""The command ``python -m papers NAME``, which repeats the experiments of a paper and checks the numbers.

Each module of this folder becomes a command. The command calls the function ``reproduce`` of the module. The options
come from the signature of this function, and the help text from its docstring. Checks are for runs of the default size;
a smaller run reports them as *not judged*.

Exit codes: 0 if no check fails, 1 if a check fails or the input is refused (with a one-line message), 2 for a usage
error.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

import papers
from dpca.errors import StorageError
from dpca_tasks.errors import DpcaError
from flows.reports.terminal import STDERR, print_json, print_rows
from papers.lib.experiments import Report

COLUMNS = ("name", "expected", "tolerance", "got", "holds")
MODULES = {
    module.name.replace("_", "-"): f"papers.{module.name}"
    for module in iter_modules(papers.__path__)
    if not module.ispkg and not module.name.startswith("_")
}
"""The modules by the names of their commands."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def command_of(reproduce: Callable[..., Report]) -> Callable[..., None]:
    """Return a command that calls a paper's ``reproduce``, prints the report (``--json``: as JSON) and exits."""

    @wraps(reproduce)
    def command(*, as_json: bool, **options: Any) -> None:
        print_report(reproduce(**options), as_json=as_json)

    signature = inspect.signature(reproduce)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option], return_annotation=None
    )
    command.__annotations__ = {**reproduce.__annotations__, "as_json": Json, "return": None}
    return command


def print_report(found: Report, *, as_json: bool) -> None:
    """Print the checks as a table, or the whole report as JSON; exit with 1 if a check fails, otherwise with 0."""
    if as_json:
        print_json(found)
    else:
        shown = [check | ({"holds": "not judged"} if check["holds"] is None else {}) for check in found["checks"]]
        print_rows(shown, COLUMNS, as_json=False, empty="nothing to check")
        for each in found.get("notes", ()):
            STDERR.print(each, markup=False)
        for each in found["left_out"]:
            STDERR.print(f"left out: {each}", markup=False)
    raise typer.Exit(1 if any(check["holds"] is False for check in found["checks"]) else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``papers``, and return its exit code; for a named paper, import only the module of this paper."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)
    for name in [words[0]] if words and words[0] in MODULES else MODULES:
        reproduce = import_module(MODULES[name]).reproduce
        text, _, _ = (inspect.getdoc(reproduce) or "").partition("\n\nReturns\n")
        app.command(name, help=text)(command_of(reproduce))
    try:
        app(words, prog_name="python -m papers")
    except SystemExit as ending:
        return int(ending.code or 0)
    except (DpcaError, StorageError, OSError) as error:
        STDERR.print(f"papers: {error}", markup=False)
    return 1


if __name__ == "__main__":
    sys.exit(main())
