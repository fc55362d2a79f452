"""Command ``papers``: form of a check, options made from signatures, and the exit status of a reproduction."""

import inspect
import json
import math
import shlex
from collections.abc import Iterator

import pytest
import typer

from papers import mechanisms
from papers.__main__ import MODULES, command_of, print_report
from papers.lib.experiments import Check, Report, at_least, at_most, judged, near, report
from tests.docs.reader import DOCS, shell_blocks
from tests.papers.conftest import Papers

FIELDS = {"name", "expected", "tolerance", "got", "holds"}


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (near("a", 1.0, 0.25, got=1.25), True),
        (near("a", 1.0, 0.25, got=0.7), False),
        (near("a", 1.0, 0.25, got=math.nan), False),
        (at_least("a", 1.0, got=1.0), True),
        (at_least("a", 1.0, got=7.0), True),
        (at_least("a", 1.0, got=0.9), False),
        (at_least("a", 1.0, got=0.9, tolerance=0.2), True),
        (at_least("a", 1.0, got=math.nan), False),
        (at_most("a", 1.0, got=-7.0), True),
        (at_most("a", 1.0, got=1.1), False),
        (at_most("a", 1.0, got=1.1, tolerance=0.2), True),
        (at_most("a", 1.0, got=math.nan), False),
    ],
)
def test_a_check_holds_within_its_tolerance_and_never_for_nan(check: Check, *, holds: bool) -> None:
    assert set(check) == FIELDS
    assert check["holds"] is holds


def test_a_one_sided_check_has_the_side_in_its_name() -> None:
    assert at_least("share", 0.5, got=0.6)["name"] == "share, at least"
    assert at_most("share", 0.5, got=0.6)["name"] == "share, at most"
    assert near("share", 0.5, 0.1, got=0.6)["name"] == "share"


def made(*, got: float) -> Report:
    def checks() -> Iterator[Check]:
        yield near("first", 1.0, 0.1, got=1.0)
        yield at_least("second", 1.0, got=got)

    return report(checks(), left_out=["third: no data"], table=[1, 2])


def test_a_report_holds_the_checks_and_the_rest() -> None:
    found = made(got=2.0)
    assert [check["name"] for check in found["checks"]] == ["first", "second, at least"]
    assert found["left_out"] == ["third: no data"]
    assert found["table"] == [1, 2]


@pytest.mark.parametrize(("got", "status"), [(2.0, 0), (0.0, 1)])
def test_the_exit_code_states_whether_all_checks_hold(
    got: float, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ending:
        print_report(made(got=got), as_json=True)
    assert ending.value.exit_code == status
    assert json.loads(capsys.readouterr().out) == made(got=got)


def test_a_run_that_is_too_small_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    failing, holding = at_least("first", 1.0, got=0.0), near("second", 1, 0, got=1)
    checks = [*judged([failing], full=False), *judged([holding], full=True)]
    with pytest.raises(typer.Exit) as ending:
        print_report(report(checks), as_json=False)
    assert ending.value.exit_code == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["holds", "judged", "True"]


def test_a_table_lists_omitted_parts_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        print_report(made(got=2.0), as_json=False)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert "left out: third: no data" in printed.err


def test_every_module_is_a_command_with_help(papers: Papers) -> None:
    names = (
        "advice board cape-agn cape-pca continual denoise dpals dpals-films dps-pca dps-rates dps-times fmri "
        "mechanisms moments rounds schema shang shang-claims smooth smooth-data smooth-lemmas stream-maps warm"
    )
    assert sorted(MODULES) == names.split()
    listed = papers("--help")
    assert listed.status == 0
    assert all(f"  {name} " in listed.out for name in MODULES)


def test_options_are_those_of_the_signature() -> None:
    command = command_of(mechanisms.reproduce)
    assert list(inspect.signature(command).parameters) == [
        *inspect.signature(mechanisms.reproduce).parameters,
        "as_json",
    ]


def test_a_check_that_fails_sets_the_exit_code(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "TOLERANCE", 1e-9)
    ending = papers("mechanisms", "--mechanism", "laplace", "--runs", "1")
    assert ending.status == 1
    assert "False" in ending.out


@pytest.mark.parametrize("words", [("nothing",), ("mechanisms", "--runs", "0"), ("mechanisms", "--direct")])
def test_an_unknown_option_is_a_usage_error(papers: Papers, words: tuple[str, ...]) -> None:
    assert papers(*words).status == 2


@pytest.mark.parametrize("page", ["cape.md", "dpals.md"])
def test_the_commands_of_a_page_have_the_options_that_it_shows(papers: Papers, page: str) -> None:
    """Compare the options in the commands of a page with the existing ones; running the commands takes minutes."""
    (block,) = shell_blocks(DOCS / "explanation" / page)
    for line in block.splitlines():
        match shlex.split(line, comments=True):
            case ["make", target]:
                assert target == "data"
            case ["python", "-m", "papers", name, *words]:
                options = papers(name, "--help").out
                assert [word for word in words if word.startswith("--") and word not in options] == []
            case other:
                pytest.fail(f"{page} shows {other}")
