"""The ``dpca`` command, which prints every error in one line.

Exit codes: 0 for success, 1 for an error, 2 for wrong usage, 3 for a release that the budget refused.
"""

import atexit
import os
import pkgutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from dpca.backends.atomic_files import OTHERS
from dpca.errors import NotInstalled
from dpca.installed import missing_package
from flows.commands.app import App
from flows.reports.activity import activity

INTERRUPTED = 130  # the status that Typer returns after Ctrl-C
PREFECT_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # `own_server` starts a server that requires a password
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
}
NOUNS = {
    "dataset": "flows.commands.dataset:app",
    "schema": "flows.commands.dataset:schema_app",
    "budget": "flows.commands.budget:app",
    "ledger": "flows.commands.budget:ledger_app",
    "subspace": "flows.commands.subspace:app",
    "completion": "flows.commands.factorization:app",
    "tensor": "flows.commands.factorization:tensor_app",
    "moment": "flows.commands.moment:app",
    "derive": "flows.commands.moment:derive_app",
    "sites": "flows.commands.sites:app",
    "site": "flows.commands.sites:site_app",
    "stream": "flows.commands.subspace:stream_app",
    "registry": "flows.commands.registry:app",
    "transform": "flows.commands.consuming:transform",
    "recommend": "flows.commands.consuming:recommend",
    "backup": "flows.commands.installation:backup_app",
    "mechanism": "flows.commands.mechanism:app",
    "serve": "flows.commands.installation:serve",
    "pages": "flows.commands.installation:pages_app",
    "demo": "flows.commands.installation:demo",
    "audit": "flows.commands.mechanism:audit_app",
    "doctor": "flows.commands.installation:doctor",
}
"""Where to import each noun's commands from; a process imports only the commands of the noun in its arguments."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpca {version('dpca-pipeline')}")
        raise typer.Exit


def build_app(noun: str | None = None) -> typer.Typer:
    """Assemble the commands of one noun (``dpca NOUN VERB``), or of all nouns if ``noun`` is not in `NOUNS`.

    Each command imports the heavy libraries that it uses.
    """
    app = App(name="dpca", add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_options)
    for name in [noun] if noun in NOUNS else NOUNS:
        try:
            found = pkgutil.resolve_name(NOUNS[name])
        except ModuleNotFoundError as error:
            if name == noun:
                raise
            found = _not_installed(str(missing_package(error, what=f"dpca {name}", extra="pipeline")))
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _not_installed(text: str) -> Callable[[], None]:
    def command() -> None:
        raise NotInstalled(text)

    command.__doc__ = f"Not installed: {text}."
    return command


def main(arguments: list[str] | None = None) -> int:
    """Run the command and map every outcome to an exit code."""
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    before = os.umask(OTHERS)  # hides files that libraries write; `storage` sets its own modes
    try:
        status = _run(arguments)
    finally:
        os.umask(before)
    if arguments is None:  # called by the shell, so the process can end here
        _end(status)
    return status


def _run(arguments: list[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else [str(word) for word in arguments]
    try:
        with activity("starting"):
            command: Any = typer.main.get_command(build_app(words[0] if words else None))
    except ModuleNotFoundError as error:
        return _fail(*_explain(error))
    try:
        status = command.main(args=arguments, prog_name="dpca", standalone_mode=False)
    except TyperException as error:
        requested = _named(command, words)
        return _fail(f"{error.format_message().rstrip('.')}; see `{requested} --help`.", error.exit_code)
    except typer.Abort:
        return _fail("interrupted; nothing was done.", 1)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:  # noqa: BLE001 - every error becomes one line and an exit code here
        return _fail(*_explain(error))
    if status == INTERRUPTED:
        return _fail("interrupted; the same request resumes the unfinished work.", 1)
    return status if isinstance(status, int) else 0


def _named(command: Any, words: list[str]) -> str:
    """Return the command that ``words`` name, such as ``dpca budget open``, for error messages."""
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
    from dpca.errors import BudgetExhausted, StorageError
    from dpca_tasks.errors import DpcaError

    if isinstance(error, ModuleNotFoundError) and not isinstance(error, StorageError):
        error = missing_package(error, what="this command", extra="pipeline")
    if isinstance(error, BudgetExhausted):
        return str(error), 3
    if isinstance(error, (DpcaError, StorageError)):
        return str(error), 1
    if os.environ.get("DPCA_DEBUG"):
        raise error
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename or 'no file'}; fix this problem, and run the same request again.", 1
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f"{os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno}" if where else "unknown"  # noqa: PTH119
    return (
        f"unexpected {type(error).__name__} at {place}; to see the error, set DPCA_DEBUG=1, but only where its data "
        "may be shown."
    ), 1


def _fail(message: str, status: int) -> int:
    typer.echo("dpca: " + " ".join(message.split()), err=True)
    return status


def _end(status: int) -> None:
    """End this process as the interpreter would, but skip the teardown of imported modules.

    The teardown takes more than a second without any output, and many seconds on a busy machine.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads before exit functions, as multiprocessing does
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # if flushing fails, the interpreter's normal exit reports it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
