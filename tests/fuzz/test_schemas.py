"""Broken schemas are refused in one line by each command that reads one, and leave nothing behind."""

import random
from pathlib import Path

import pytest

from tests.flows.conftest import Command, facts_of, isolate
from tests.flows.conftest import dpca as dpca  # a fixture
from tests.raw_tables import TABLES

INPUTS = 60
WORDS = (
    "null",
    "-1",
    "1e400",
    "[]",
    "{}",
    "true",
    "'",
    '"',
    ": ",
    "- ",
    "&a",
    "*a",
    "!!set",
    "\t",
    "\x00",
    "💥",
    "TO_DECLARE",
)


def broken(text: str, rng: random.Random) -> bytes:
    """Damage a schema at one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(text))
        end = min(len(text), at + rng.randint(0, 12))
        match rng.randrange(4):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + rng.choice(WORDS) + text[end:]
            case 2:
                lines = text.split("\n")
                lines.insert(rng.randrange(len(lines)), rng.choice(lines))
                text = "\n".join(lines)
            case _:
                words = text.split(" ")
                first, second = rng.randrange(len(words)), rng.randrange(len(words))
                words[first], words[second] = words[second], words[first]
                text = " ".join(words)
    raw = text.encode()
    return (
        raw if rng.random() < 0.95 else raw[: len(raw) // 2] + bytes([rng.randrange(128, 256)]) + raw[len(raw) // 2 :]
    )


def test_a_broken_schema_is_one_line_or_a_schema_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpca: Command
) -> None:
    rng = random.Random("schemas")
    isolate(monkeypatch, home=tmp_path / "home")
    path, endings = tmp_path / "schema.yaml", []
    for name in INPUTS // len(TABLES) * list(TABLES):
        path.write_bytes(broken(TABLES[name].schema, rng))
        ending = dpca("schema", "show", path)
        endings.append(ending.status)
        if ending.status:
            ending.complaint(1)
    assert {0, 1} == set(endings)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["census", "nested"])
def test_a_table_whose_schema_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpca: Command, name: str
) -> None:
    rng, table = random.Random(f"ingests {name}"), TABLES[name]
    isolate(monkeypatch, home=tmp_path / "home")
    source = table.write(tmp_path)
    assert dpca("budget", "open", "others", "--epsilon", 1, "--delta", 1e-6).status == 0
    before = facts_of(tmp_path / "home")
    path, refused = tmp_path / "schema.yaml", 0
    for _ in range(12):
        path.write_bytes(broken(table.schema, rng))
        ending = dpca("dataset", "ingest", source, "--name", "d", "--table-schema", path, "--direct")
        if ending.status:
            line = ending.complaint(1)
            assert "SECRET" not in line
            assert facts_of(tmp_path / "home") == before
            refused += 1
        else:
            assert dpca("dataset", "verify", "d").status == 0
            assert dpca("dataset", "remove", "d").status == 0
            before = facts_of(tmp_path / "home")
    assert refused
