"""Tables of packages become datasets within three commands, of which at most one fails; see `tests/data/messy`."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows.cli import main
from tests.docs.reader import ROOT

MESSY = ROOT / "tests" / "data" / "messy"


@dataclass(frozen=True, kw_only=True)
class Story:
    """A new user's first schema, as pieces in place of those of the right one, and the columns that the check reports.

    Attributes
    ----------
    guesses : pairs of (piece of the right schema, piece of the first one)
    reported : columns of which the check reports all that is wrong at once
    drafts : options of each attempt to draft
    ingest : options of the ingest
    rows : of the snapshot
    """

    guesses: tuple[tuple[str, str], ...] = ()
    reported: frozenset[str] = frozenset()
    drafts: tuple[tuple[str, ...], ...] = ((),)
    ingest: tuple[str, ...] = ()
    rows: int = 0


STORIES = {
    "iris": Story(drafts=((), ("--no-header",)), ingest=("--on-error", "quarantine"), rows=151),
    "modechoice": Story(
        guesses=(("[1, 2, 3, 4]", "[1, 2, 3]"), ("kind: boolean}", "kind: boolean, when_true: [yes], missing: no}")),
        reported=frozenset({"choice", "mode"}),
        rows=200,
    ),
    "seattle-weather": Story(
        guesses=((', formats: ["%Y/%m/%d"]', ""), ("[drizzle, fog, rain, snow, sun]", "[rain, sun]")),
        reported=frozenset({"date", "weather"}),
        rows=100,
    ),
    "penguins-raw": Story(
        guesses=(('missing_texts: ["", "NA"]\n', ""), ("kind: id}", "kind: drop}"), ("Date Egg", "date egg")),
        reported=frozenset(
            {"Culmen Length (mm)", "Culmen Depth (mm)", "Flipper Length (mm)", "Body Mass (g)", "Date Egg", "date egg"}
        ),
        rows=120,
    ),
    "lymph_node": Story(
        guesses=((', formats: ["%d-%m-%Y"]', ""), ("values: [1, 2, 3]", "values: TO_DECLARE")),
        reported=frozenset({"diagdateb", "grade"}),
        rows=80,
    ),
}


@dataclass
class Shell:
    """Type commands, and count them and those that failed."""

    capsys: pytest.CaptureFixture[str]
    statuses: list[int] = field(default_factory=list)

    def types(self, *words: str | Path) -> str:
        self.statuses.append(main([str(word) for word in words]))
        printed = self.capsys.readouterr()
        assert "unexpected" not in printed.err
        return printed.out


@pytest.mark.parametrize("name", STORIES)
def test_a_messy_table_of_a_package_takes_three_commands_of_which_one_may_fail(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("DPCA_HOME", "DPCA_STATE_FOLDER"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    story, source, schema = STORIES[name], MESSY / f"{name}.csv", tmp_path / "schema.yaml"
    right = (MESSY / f"{name}.yaml").read_text(encoding="utf-8")
    shell = Shell(capsys)
    for words in story.drafts:
        draft = shell.types("schema", "draft", source, *words)
    assert "TO_DECLARE" in draft
    if story.guesses:
        first = right
        for piece, guess in story.guesses:
            assert piece in first
            first = first.replace(piece, guess)
        schema.write_text(first, encoding="utf-8")
        reported = shell.types("schema", "check", source, schema)
        for column in story.reported:
            assert f"\n{column} " in reported, reported
        assert len({line.split("  ")[0] for line in reported.splitlines()[1:-1]}) == len(story.reported), reported
    schema.write_text(right, encoding="utf-8")
    shown = shell.types(
        "dataset", "ingest", source, "--table-schema", schema, "--name", name, "--direct", *story.ingest
    )
    assert f"rows               {story.rows}\n" in shown
    assert len(shell.statuses) <= 3
    assert sum(status != 0 for status in shell.statuses) <= 1
    assert shell.statuses[-1] == 0
