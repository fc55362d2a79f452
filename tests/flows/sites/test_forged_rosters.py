"""Every part of a roster counts: a forged one is refused in one line, or has another digest, which parties compare."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dpca_tasks.errors import InvalidInput
from dpca_tasks.sites.roster import Member, Roster
from flows.parties.certificates import make_identity
from flows.sites.roster_file import read_roster
from tests.forger import forgeries

NAMES = ("aggregator", "helper", "a", "b", "c", "d")
ROSTER: dict[str, Any] = {
    "features": 5,
    "relation": "zero_out",
    "unit": "patient",
    "rows_per_unit": 3,
    "colluders": 0,
    "dropouts": 1,
    "attempts": 2,
    "timeout": 60,
    "masks": "helper",
    "aggregator": {"certificate": "aggregator.pem"},
    "helper": {"address": "https://helper.example", "certificate": "helper.pem"},
    "sites": [
        {
            "name": name,
            "address": f"https://{name}.example",
            "certificate": f"{name}.pem",
            "records": 9 + at,
            "weight": 2,
        }
        for at, name in enumerate("abcd")
    ],
}
OTHER: dict[str, Any] = {
    **ROSTER,
    **{"features": 6, "relation": "add_remove", "unit": "user", "rows_per_unit": 1, "timeout": 5},
    **{"colluders": 1, "dropouts": 0, "attempts": 1},
    "aggregator": {"certificate": "other.pem"},
    "helper": {"address": "https://elsewhere.example", "certificate": "other.pem"},
    "sites": [
        {"name": name, "address": f"https://{name}.other", "certificate": "other.pem", "records": 50, "weight": 1}
        for name in ("e", "f", "g", "h")
    ],
}
PUBLIC_PATHS = ("address", "timeout")
"""A site may move while a release runs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rosters")
    for name in (*NAMES, "other"):
        make_identity(name, folder)
    return folder


def digest(folder: Path, content: Any) -> str | None:
    """Return the digest of a roster, or nothing for one that is refused."""
    path = folder / "roster.yaml"
    path.write_text(yaml.safe_dump(content))
    try:
        return read_roster(path).digest
    except InvalidInput as refusal:
        if "\n" in str(refusal):
            raise
        return None


@pytest.mark.parametrize("masks", ["helper", "secure_sum"])
def test_a_forged_roster_file_is_refused_or_has_another_digest(folder: Path, masks: str) -> None:
    honest = {**ROSTER, "masks": masks}
    known = digest(folder, honest)
    assert known is not None
    assert digest(folder, {**OTHER, "aggregator": {"certificate": "a.pem"}, "masks": masks}) != known
    count, unseen = 0, []
    for way, forged in forgeries(honest, {**OTHER, "masks": "helper" if masks == "secure_sum" else "secure_sum"}):
        count += 1
        is_address = any(way.endswith(path) for path in PUBLIC_PATHS)
        unseen += [way] if not is_address and digest(folder, forged) == known else []
    assert count > 100
    assert unseen == (["dropped masks"] if masks == "helper" else [])  # the helper is the default


def test_addresses_and_the_timeout_are_all_that_the_digest_leaves_out(folder: Path) -> None:
    moved = {**ROSTER, "timeout": 9, "helper": {**ROSTER["helper"], "address": "https://new.example"}}
    assert digest(folder, moved) == digest(folder, ROSTER)


def test_every_fact_of_a_roster_changes_its_digest() -> None:
    """The digest that a site's noise and every masked message are bound to; only the order of the members is free."""
    members = tuple(Member(name=name, records=10, noise_multiplier=4.0, weight=2) for name in "abcd")
    roster = Roster(session="spring", members=members, colluders=1, dropouts=1, attempts=2)
    assert replace(roster, members=members[::-1]).digest == roster.digest
    first = members[0]
    others: dict[str, Any] = {"name": "e", "records": 11, "noise_multiplier": 4.0 + 2**-50, "weight": 3}
    assert set(others) == {field.name for field in fields(Member)}
    changed = [
        replace(roster, members=(replace(first, **{name: value}), *members[1:])) for name, value in others.items()
    ]
    facts: dict[str, Any] = {"session": "autumn", "members": members[1:], "colluders": 0, "dropouts": 0, "attempts": 3}
    assert set(facts) == {field.name for field in fields(Roster)}
    changed += [replace(roster, **{name: value}) for name, value in facts.items()]
    digests = {one.digest for one in [roster, *changed]}
    assert len(digests) == 1 + len(changed)


def test_a_character_cannot_move_between_neighbouring_facts_of_a_roster() -> None:
    z = Member(name="z", records=1, noise_multiplier=1.0)
    one, other = (
        Roster(session="s", members=(replace(z, name=name), z), colluders=0, attempts=attempts)
        for attempts, name in ((1, "1a"), (11, "a"))
    )
    assert one.digest != other.digest
