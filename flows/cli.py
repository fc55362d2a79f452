"""The ``dpca`` command: parse, call, print, and one line for every error.

Exit codes: 0 done, 1 an error in one line, 2 usage, 3 the budget refused.
"""

import atexit
import os
import sys
import threading
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from flows.reports.activity import activity
from storage.backends.private import OTHERS

INTERRUPTED = 130  # what Typer makes of Ctrl-C
PREFECT_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # `own_server` starts one that asks for a password
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpca {version('dpca-pipeline')}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """Assemble the command tree; heavy libraries are imported by the commands that use them."""
    from flows.commands import (
        audit,
        backup,
        budget,
        completion,
        dataset,
        demo,
        doctor,
        ledger,
        mechanism,
        one_site,
        registry,
        schema,
        serve,
        sites,
        stream,
        subspace,
        tensor,
    )

    app = typer.Typer(
        name="dpca",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.add_typer(dataset.app, name="dataset")
    app.add_typer(schema.app, name="schema")
    app.add_typer(budget.app, name="budget")
    app.add_typer(ledger.app, name="ledger")
    app.add_typer(subspace.app, name="subspace")
    app.add_typer(completion.app, name="completion")
    app.add_typer(tensor.app, name="tensor")
    app.add_typer(sites.app, name="sites")
    app.add_typer(one_site.app, name="site")
    app.add_typer(stream.app, name="stream")
    app.add_typer(registry.app, name="registry")
    app.add_typer(backup.app, name="backup")
    app.add_typer(mechanism.app, name="mechanism")
    app.command("serve")(serve.serve)
    app.command("demo")(demo.demo)
    app.add_typer(audit.app, name="audit")
    app.command("doctor")(doctor.doctor)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run the command and map every ending to an exit code, once."""
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    before = os.umask(OTHERS)  # for what libraries write; storage sets its modes itself
    try:
        status = _run(arguments)
    finally:
        os.umask(before)
    if arguments is None:  # this process is the command
        _end(status)
    return status


def _run(arguments: list[str] | None) -> int:
    with activity("starting"):
        command: Any = typer.main.get_command(build_app())
    try:
        status = command.main(args=arguments, prog_name="dpca", standalone_mode=False)
    except TyperException as error:
        asked = _named(command, sys.argv[1:] if arguments is None else [str(word) for word in arguments])
        return _fail(f"{error.format_message().rstrip('.')}; see `{asked} --help`.", error.exit_code)
    except typer.Abort:
        return _fail("interrupted; nothing was done.", 1)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:  # noqa: BLE001 - the one place where an error becomes a line and a code
        return _fail(*_explain(error))
    if status == INTERRUPTED:
        return _fail("interrupted; the same request resumes what was begun.", 1)
    return status if isinstance(status, int) else 0


def _named(command: Any, words: list[str]) -> str:
    """Return the command that some words name, as far as they name one; its help explains the words that follow."""
    path = ["dpca"]
    for word in words:
        commands = getattr(command, "commands", {})
        if word in commands:
            command = commands[word]
            path.append(word)
    return " ".join(path)


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Differentially private PCA of sparse data, on a schedule, with a durable budget."""


def _explain(error: Exception) -> tuple[str, int]:
    from dpca_tasks.errors import DpcaError
    from storage.errors import BudgetExhausted, StorageError

    if isinstance(error, BudgetExhausted):
        return str(error), 3
    if isinstance(error, (DpcaError, StorageError)):
        return str(error), 1
    if os.environ.get("DPCA_DEBUG"):
        raise error
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename or 'no file'}; fix it and run the same request again.", 1
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f"{os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno}" if where else "unknown"  # noqa: PTH119
    return f"unexpected {type(error).__name__} at {place}; set DPCA_DEBUG=1 to see it where data may be seen.", 1


def _fail(message: str, status: int) -> int:
    typer.echo("dpca: " + " ".join(message.split()), err=True)
    return status


def _end(status: int) -> None:
    """End this process as the interpreter would, but do not take apart all that it imported.

    That is over a second of silence, and many seconds on a busy machine.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads; this order is multiprocessing's too
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # where nobody reads what is left to write, the interpreter says so
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
