"""The threat model lists every value that leaves, and its tables are those of the program."""

import dataclasses
import re
from pathlib import Path

from flows.orchestration.prefect_stages import ENDINGS
from storage.artifacts import embeddings, manifest, subspace, tensor
from storage.ledger import journal
from storage.registry.pointers import Pointer
from storage.trail.entries import FIELDS, Subjects

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "threat-model.md").read_text()
SECTION = PAGE.partition("## Every value that leaves\n")[2].partition("\n## ")[0]


def cells(first: str) -> list[list[str]]:
    """Return the cells of the rows whose first cell begins with some text."""
    rows = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith(f"| {first}")]
    return [[cell.strip(" |") for cell in row] for row in rows]


def quoted(text: str) -> list[str]:
    return re.findall("`([^`]+)`", text)


def test_every_entry_of_the_journal_is_listed_with_all_its_facts() -> None:
    table = {quoted(row[0])[0]: row for row in cells("`")}
    assert table.keys() == journal.DETAILS.keys()
    for name, row in table.items():
        has_facts = bool(journal.DETAILS[name])
        assert quoted(row[1] if has_facts else "") == list(journal.DETAILS[name]), name
        subject = Subjects().of({"name": name, "population": "people", "release_id": None})
        assert row[-1] == ("hash" if subject is None else "whole"), name


def test_the_fields_of_an_entry_are_listed() -> None:
    text = SECTION.partition("An\nentry has ")[2].partition(";")[0]
    assert quoted(text) == list(FIELDS)


def test_every_fact_of_a_manifest_is_listed() -> None:
    kinds = (embeddings._FACTS, subspace._FACTS, tensor._FACTS)
    listed = [name for row in cells("manifest:") for name in quoted(row[0])]
    assert sorted(listed) == sorted({*manifest.FACTS}.union(*kinds))


def test_every_state_of_a_run_is_listed() -> None:
    (row,) = cells("state of a run:")
    assert quoted(row[0]) == list(ENDINGS)


def test_a_pointer_file_has_no_other_facts() -> None:
    """Its members are versions, aliases and marks; its checksum covers these."""
    pointer = Pointer(name="map", versions={1: "d" * 64}, aliases={"champion": 1}, not_private=frozenset({1}))
    assert pointer.facts().keys() == {"versions", "aliases", "not_private"}
    assert {field.name for field in dataclasses.fields(Pointer)} == {"name", *pointer.facts()}
