"""Help texts: options in groups, lines complete at 80 columns, and a reference to the glossary."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from docs.command_reference import reference
from flows.cli import build_app
from flows.commands.app import COMMAND_GROUPS, GROUPED_FROM, OPTION_GROUPS, TERMS
from tests.flows.conftest import Command


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, *path, name)


EVERY = list(commands(typer.main.get_command(build_app())))


def test_every_noun_is_in_one_of_four_groups(dpca: Command) -> None:
    nouns = {path[0] for path in EVERY if path}
    assert sorted(nouns) == sorted(name for names in COMMAND_GROUPS.values() for name in names)
    assert len(COMMAND_GROUPS) == 4
    shown = dpca("--help").out
    assert [shown.index(f"{group}:") for group in COMMAND_GROUPS] == sorted(
        shown.index(f"{group}:") for group in COMMAND_GROUPS
    )


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_no_help_line_is_truncated_or_longer_than_80_columns(
    dpca: Command, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = dpca(*path, "--help").out
    assert max(map(len, shown.splitlines())) <= 80
    assert not [line for line in shown.splitlines() if line.endswith("...") and "Usage:" not in line]


@pytest.mark.parametrize("path", [("subspace", "fit"), ("subspace", "refresh"), ("dataset", "ingest")], ids=" ".join)
def test_all_options_are_shown_in_groups(dpca: Command, path: tuple[str, ...]) -> None:
    shown = dpca(*path, "--help").out
    assert shown.count("\n  --") >= GROUPED_FROM
    assert sum(f"\n{group}:\n" in shown for group in OPTION_GROUPS) >= 2
    left = shown.partition("\nOptions:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in left.splitlines() if line.strip()] == ["--help"]


def test_help_of_options_of_privacy_names_the_glossary(dpca: Command) -> None:
    assert " ".join(TERMS.split()) in " ".join(dpca("subspace", "fit", "--help").out.split())


def test_the_reference_has_a_group_for_each_noun() -> None:
    page = reference(typer.main.get_command(build_app()))
    assert "## dpca pages build" in page
    assert "## dpca site build" not in page
