"""The six short paths of the documentation work as typed, with the stated number of commands, and no command fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import guide_inputs as inputs
from tests.docs.reader import DOCS, FAILS, ROOT, Reader, python_blocks, shell_blocks

PAGE = DOCS / "journeys.md"
MOST = {"Data engineer": 8, "Consumer": 3, "Recommender": 4, "Sites, and documents": 9, "Privacy officer": 3}
"""Number of commands of each path; "Sites, and documents" is two paths, with five and four commands."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {title.partition(":")[0]: text for title, text in zip(parts[::2], parts[1::2], strict=True)}


def script_of(title: str) -> str:
    return "".join(re.findall(r"^```sh\n(.*?)^```$", sections()[title], flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("title", MOST)
def test_a_short_path_has_few_commands_without_expected_failures(title: str) -> None:
    typed = re.findall(r"^(?:dpca|prefect) .*", script_of(title), flags=re.MULTILINE)
    assert len(typed) == MOST[title]
    assert not [line for line in typed if FAILS in line]
    assert "".join(map(script_of, MOST)) == "".join(shell_blocks(PAGE))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reader:
    typist = Reader(tmp_path, monkeypatch, capsys, hurried=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "prefect").write_text('#!/bin/sh\necho "prefect $*" >> "$NOTED"\n')
    (programs / "prefect").chmod(0o700)
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return typist


def test_the_paths_of_engineer_consumer_and_officer_work_in_sequence(tmp_path: Path, reader: Reader) -> None:
    made = reader.types(script_of("Data engineer"))
    assert re.search(r"^artifact +visits-map@1$", made, flags=re.MULTILINE)
    noted = (tmp_path / "noted").read_text().splitlines()
    assert noted[0] == "prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml"
    read = reader.types(script_of("Consumer"))
    assert "one patient (`patient`, at most 1 row) is added or removed" in read
    assert (tmp_path / "scores.npy").is_file()
    checked = reader.types(script_of("Privacy officer"))
    assert re.search(r"^verdict +valid$", checked, flags=re.MULTILINE)


def test_a_recommender_recommends(tmp_path: Path, reader: Reader) -> None:
    inputs.films(tmp_path)
    shown = reader.types(script_of("Recommender"))
    assert len(re.findall(r"^film\d+ ", shown, flags=re.MULTILINE)) == 5


def test_sites_release_jointly_and_documents_have_topics(tmp_path: Path, reader: Reader) -> None:
    inputs.sites(tmp_path)
    inputs.reports(tmp_path)
    shown = reader.types(script_of("Sites, and documents"))
    assert re.search(r"^artifact +joint-map@1$", shown, flags=re.MULTILINE)
    assert "word" in shown


def test_a_data_scientist_needs_one_cell(tmp_path: Path) -> None:
    (cell,) = python_blocks(PAGE)
    ended = subprocess.run(
        [sys.executable, "-c", cell],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("captures ")
