"""Options that a command and a flow share: each has one name and one declaration, with equal text and bounds."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from prefect import Flow, flow

from flows.cli import build_app
from flows.options import Workers, command_option, form_field, with_options

ROOT = Path(__file__).parents[2]
COMMAND_OF = {
    "ingest-dataset": ("dataset", "ingest"),
    "fit-subspace": ("subspace", "fit"),
    "evaluate-subspace": ("subspace", "evaluate"),
    "refresh-subspace": ("subspace", "refresh"),
    "complete": ("completion", "fit"),
    "evaluate-completion": ("completion", "evaluate"),
    "decompose": ("tensor", "fit"),
    "fit-moment": ("moment", "fit"),
    "fit-sites": ("sites", "fit"),
    "tick-stream": ("stream", "tick"),
}
OF_COMMANDS_ALONE = {"direct", "yes", "as_json", "buys", "i_know_this_is_not_private"}
"""Options that only apply to a person at a terminal."""
ON_ONE_SIDE = {("refresh-subspace", "dry_run"), ("fit-sites", "dry_run")}
"""Options that only a flow or only its command has."""
DECLARED_TWICE = {("ingest-dataset", "source"), ("refresh-subspace", "inbox")}
"""Paths are private: a flow takes a reference instead of a path, with another help text."""


def _flows() -> dict[str, Flow[..., Any]]:
    modules = [importlib.import_module(f"flows.{found.name}") for found in pkgutil.iter_modules([str(ROOT / "flows")])]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Flow)]
    return {one.name: one for one in found}


def _commands() -> dict[tuple[str, ...], Any]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not hasattr(command, "commands"):
            yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))

    return dict(walk(typer.main.get_command(build_app()), ()))


def _differences(job: Flow[..., Any], command: Any) -> list[str]:
    """Return a line for each option whose name or declaration differs between a flow and its command."""
    found = []
    shown = job.parameters.properties
    taken = {parameter.name: parameter for parameter in command.params}
    for name, parameter in taken.items():
        flag = name if parameter.param_type_name == "argument" else f"--{name.replace('_', '-')}"
        if name not in OF_COMMANDS_ALONE and flag not in parameter.opts:
            found.append(f"{name} is spelled {parameter.opts}")
        in_flow = {*inspect.signature(job.fn).parameters, *OF_COMMANDS_ALONE}
        if name not in in_flow and (job.name, name) not in ON_ONE_SIDE:
            found.append(f"{name} is no parameter of the flow")
    for name, rules in shown.items():
        if name not in taken and (job.name, name) not in ON_ONE_SIDE:
            found.append(f"{name} is no option of the command")
        if name not in taken or (job.name, name) in DECLARED_TWICE:
            continue
        if rules.get("description") != taken[name].help:
            found.append(f"{name} has two texts")
        bounds = {"minimum": taken[name].min, "maximum": taken[name].max}
        if any(bound is not None and rules.get(rule) != bound for rule, bound in bounds.items()):
            found.append(f"{name} has two domains")
    return found


FLOWS, COMMANDS = _flows(), _commands()


def test_every_flow_has_a_command() -> None:
    assert FLOWS.keys() == COMMAND_OF.keys()


@pytest.mark.parametrize("name", COMMAND_OF)
def test_an_option_of_a_flow_and_its_command_has_one_name_and_one_declaration(name: str) -> None:
    assert _differences(FLOWS[name], COMMANDS[COMMAND_OF[name]]) == []


def _planted(workers: Any) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(with_options(annotation=command_option)(workers))
    return typer.main.get_command(app)


@flow(name="planted")
@with_options(annotation=form_field)
def _job(*, workers: Workers = None, table: str | None = None) -> None: ...


def test_a_flag_of_another_name_is_found() -> None:
    def job(*, workers: Workers = None, table: Annotated[str | None, typer.Option("--sheet")] = None) -> None: ...

    assert _differences(_job, _planted(job)) == ["table is spelled ['--sheet']"]


def test_a_parameter_of_another_name_is_found() -> None:
    def job(*, workers: Workers = None, sheet: str | None = None) -> None: ...

    assert _differences(_job, _planted(job)) == [
        "sheet is no parameter of the flow",
        "table is no option of the command",
    ]


def test_a_second_declaration_is_found() -> None:
    def job(
        *,
        workers: Annotated[int | None, typer.Option(min=2, help="Processes.")] = None,
        table: str | None = None,
    ) -> None: ...

    assert _differences(_job, _planted(job)) == ["workers has two texts", "workers has two domains"]
