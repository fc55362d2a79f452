"""The documents say what the code does: settings, commands, and a tutorial that works as it is typed."""

import re
from pathlib import Path

import pytest
import typer

from docs.command_reference import reference
from flows.cli import build_app
from flows.settings import Settings
from tests.docs.reader import DOCS, ROOT, Reader, shell_blocks

PACKAGES = ("dpca_tasks", "flows", "storage")


def settings_of_the_code() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {name for text in texts for name in re.findall(r"\bDPCA_[A-Z_]*[A-Z]\b", text)} | {
        f"DPCA_{name.upper()}" for name in Settings.model_fields
    }


def test_the_reference_lists_every_setting_and_no_other() -> None:
    page = (DOCS / "reference/settings.md").read_text(encoding="utf-8")
    listed = {
        name
        for row in page.splitlines()
        if row.startswith("|")
        for name in re.findall(r"`(DPCA_\w+)`", row.split("|")[1])
    }
    assert listed == settings_of_the_code()


def test_the_reference_of_the_command_is_whole() -> None:
    page = reference(typer.main.get_command(build_app()))
    for line in ("## dpca subspace fit", "## dpca dataset ingest", "## dpca registry promote", "| `--clip-norm` |"):
        assert line in page
    assert "None" not in page


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_command_in_the_documents_exists(page: Path) -> None:
    known = reference(typer.main.get_command(build_app()))
    for block in shell_blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith(("dpca ", "curator dpca ")):
                continue
            words = line.removeprefix("curator ").split()
            paths = (" ".join(words[:length]) for length in (4, 3, 2))
            path = next((path for path in paths if f"## {path}\n" in known), " ".join(words[:2]))
            section = known.partition(f"## {path}\n")[2].partition("\n## ")[0]
            assert section, f"{path} is no command"
            for option in (word for word in words if word.startswith("--")):
                assert f"`{option}`" in section, f"{path} has no option {option}"


@pytest.mark.parametrize("page", [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_file_that_the_documents_name_exists(page: Path) -> None:
    made = {"deployments/.env", "deployments/tls", "deployments/sources"}  # by the operator
    text = page.read_text(encoding="utf-8")
    named = set(
        re.findall(r"(?<![\w/])(?:deployments|tests|flows|storage|dpca_tasks|benchmarks|\.ci)/[\w./-]*\w", text)
    )
    assert {name for name in named - made if not (ROOT / name).exists()} == set()
    for folder in re.findall(r"--kustomize (\S+)", text):
        assert (ROOT / folder / "kustomization.yaml").is_file()


def test_every_test_that_the_page_of_attacks_names_exists() -> None:
    page = (DOCS / "explanation" / "what-we-attacked.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith("| Attack |")]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test in: {row}"
        for path, name in named:
            assert re.search(rf"def {name}\(", (ROOT / path).read_text(encoding="utf-8")), f"{path} has no {name}"


def test_the_tutorial_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install, *rest = shell_blocks(DOCS / "tutorial.md")
    assert install == "make .venv\n. .venv/bin/activate\n"
    scores, script = "--output scores.npy", "".join(rest)
    assert script.count(scores) == 1
    monkeypatch.chdir(ROOT)
    reader = Reader(tmp_path, monkeypatch, capsys)
    shown = reader.types(script.replace(scores, f"--output {tmp_path / 'scores.npy'}"))
    assert "artifact          census-map@1" in shown
    assert re.search(r"^reused +True$", shown, flags=re.MULTILINE)
    assert "(10, 123)\n1.0 analyze_gauss" in shown
    assert (tmp_path / "scores.npy").stat().st_size > 32_561 * 10 * 8


def test_the_tutorial_of_completion_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recommended films are others than the user's own, in the order of their predicted ratings."""
    monkeypatch.chdir(tmp_path)
    script = "".join(shell_blocks(DOCS / "tutorials" / "completion.md"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert "artifact          taste@1" in shown
    listed = re.findall(r"^(film\d+) +([\d.]+) *$", shown, flags=re.MULTILINE)
    recommended, predicted = listed[:5], dict(listed[5:])
    assert len(predicted) == 200
    mine = {line.partition(",")[0] for line in (tmp_path / "me.csv").read_text().splitlines()[1:]}
    assert not mine & {film for film, _ in recommended}
    ratings = [float(rating) for _, rating in recommended]
    assert ratings == sorted(ratings, reverse=True)
    assert ratings[0] == max(float(rating) for film, rating in predicted.items() if film not in mine)


def test_the_tutorial_of_topics_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each topic that is shown has the words of one that the documents were made of, and weights are near theirs."""
    monkeypatch.chdir(tmp_path)
    script = "".join(shell_blocks(DOCS / "tutorials" / "topics.md"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert re.search(r"^room +\d+$", shown, flags=re.MULTILINE)
    assert "artifact          report-topics@1" in shown
    listed = re.findall(r"^\d +(0\.\d+) +(\w.*?) *$", shown, flags=re.MULTILINE)
    made = [set(line.split()) for line in re.findall(r'^    "([a-z ]+)",$', script, flags=re.MULTILINE)]
    assert [float(weight) for weight, _ in listed] == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.05)
    assert [
        {word.split()[0] for word in words.split(", ")} <= of_topic
        for (_, words), of_topic in zip(listed, made, strict=True)
    ] == [True] * 4
    assert "[[0. 1. 0. 0.]\n [0. 0. 0. 1.]]" in shown


def test_the_guide_to_your_own_tables_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = "".join(shell_blocks(DOCS / "how-to" / "your-own-tables.md"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert len(re.findall(r"^norm_at_most +2\.23607$", shown, flags=re.MULTILINE)) == 2
    assert "artifact          people-map@1" in shown
    assert "('age', 'work=State', 'work=Private', 'work=Café', 'work=(other)', 'work=(missing)', 'since'" in shown
    assert "3000 scores, the first equal to the file: True" in shown


def test_the_how_to_of_nightly_streams_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = "".join(shell_blocks(DOCS / "how-to" / "nightly-streams.md"))
    monkeypatch.setattr("flows.stream.cluster_settings", lambda _: Settings(cluster="none"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert re.findall(r"^artifact +(visits-nightly@\d)", shown, flags=re.MULTILINE) == [
        "visits-nightly@1",
        "visits-nightly@2",
        "visits-nightly@2",
    ]
    assert re.findall(r"^used +(\d+)$", shown, flags=re.MULTILINE) == ["0", "2"]
    assert set(re.findall(r"^spent +(\S+)$", shown, flags=re.MULTILINE)) == {"0", "1"}
    assert "row of one night" not in shown
