"""A roster file is the same for every party, and one that cannot work is refused in one line."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dpca_tasks.errors import InvalidInput
from flows.parties.certificates import make_identity
from flows.sites.roster_file import read_roster


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("aggregator", "helper", "a", "b", "c"):
        make_identity(name, folder)
    (folder / "broken.pem").write_text("no certificate")
    return folder


def written(folder: Path, **others: Any) -> Path:
    sites = [{"name": n, "address": f"https://{n}.example:1", "certificate": f"{n}.pem", "records": 9} for n in "abc"]
    facts: dict[str, Any] = {
        "features": 5,
        "aggregator": {"certificate": "aggregator.pem"},
        "helper": {"address": "https://h.example", "certificate": "helper.pem"},
        "sites": sites,
    }
    path = folder / "roster.yaml"
    path.write_text(yaml.safe_dump({name: fact for name, fact in {**facts, **others}.items() if fact != "absent"}))
    return path


def site(name: str, **others: Any) -> dict[str, Any]:
    given = {"name": name, "address": "https://x.example", "certificate": f"{name}.pem", "records": 9}
    return {**given, **others}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one site": ({"sites": [site("a")]}, "a roster of 1 sites must have at least 2"),
    "no site": ({"sites": []}, "a roster of 0 sites"),
    "equal names": ({"sites": [site("a"), site("a", certificate="b.pem")]}, "sites a are named twice"),
    "equal keys": ({"sites": [site("a"), site("b", certificate="a.pem")]}, "a and b have one key"),
    "a site with the helper's key": ({"sites": [site("a"), site("b", certificate="helper.pem")]}, "have one key"),
    "as many colluders as sites": ({"colluders": 3}, "colluders=3 and dropouts=0 must leave one of 3"),
    "colluders and dropouts": ({"colluders": 1, "dropouts": 2}, "must leave one of 3"),
    "no attempt": ({"attempts": 0}, "attempts=0 must be a whole number, at least 1"),
    "half a colluder": ({"colluders": 0.5}, "colluders=0.5 must be a whole number"),
    "no helper": ({"helper": "absent"}, "masks=helper needs a helper"),
    "other masks": ({"masks": "none"}, "masks='none' is not one of helper"),
    "another relation": ({"relation": "add"}, "relation='add' is not one of"),
    "no time": ({"timeout": 0}, "timeout=0 must be seconds"),
    "unknown names": ({"sits": []}, "has sits, and knows"),
    "nothing of the aggregator": ({"aggregator": "absent"}, "lacks aggregator"),
    **{
        f"the name {name[:9]!r}": ({"sites": [{**site("a"), "name": name}, site("b")]}, "must be a printable word")
        for name in ("", " a", "a:b", "a\nb", "helper", 129 * "a")
    },
    **{
        f"the address {address}": ({"sites": [site("a", address=address), site("b")]}, "is no https URL")
        for address in ("https://x:port", "https://x:99999", "https://[x", "https://")
    },
    "clear text": ({"sites": [site("a", address="http://x"), site("b")]}, "is no https URL"),
    "no certificate": ({"sites": [site("a", certificate="broken.pem"), site("b")]}, "no file with one certificate"),
    "no records": ({"sites": [site("a", records=0), site("b")]}, "records=0 must be a whole number"),
    "no weight": ({"sites": [site("a", weight=0), site("b")]}, "weight=0 must be a whole number"),
    "no list": ({"sites": "a, b"}, "is no list"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_roster_that_cannot_work_is_refused_in_one_line(keys: Path, case: str) -> None:
    facts, said = REFUSED[case]
    with pytest.raises(InvalidInput, match=said) as refusal:
        read_roster(written(keys, **facts))
    assert "\n" not in str(refusal.value)


def test_what_is_no_yaml_mapping_is_refused(keys: Path) -> None:
    path = keys / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(InvalidInput, match="is no mapping"):
        read_roster(path)
    with pytest.raises(InvalidInput, match="cannot be read as YAML"):
        read_roster(keys / "absent.yaml")


@pytest.mark.parametrize(
    "text",
    ["[" * 5_000, "{a: " * 5_000, "a: " + "9" * 5_000, "a: 0x" + "f" * 5_000, "a: 1" + 30 * "0", "\x00", "a: 1\na: 2"],
)
def test_hostile_yaml_is_refused_in_one_line(keys: Path, text: str) -> None:
    path = keys / "hostile.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="cannot be read as YAML") as refused:
        read_roster(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_pipe_or_a_file_without_end_is_no_roster(keys: Path) -> None:
    os.mkfifo(keys / "pipe.yaml")
    for path in (keys / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(InvalidInput, match="cannot be read as YAML"):
            read_roster(path)


def test_the_digest_tells_everything_about_noise_and_trust_and_nothing_of_addresses(keys: Path) -> None:
    plain = read_roster(written(keys))
    assert (plain.colluders, plain.dropouts, plain.attempts, plain.relation) == (0, 0, 1, "replace_one")
    moved = [site(name, address="https://elsewhere.example") for name in "abc"]
    assert read_roster(written(keys, sites=moved, timeout=5)).digest == plain.digest
    changes: list[dict[str, Any]] = [
        *({"features": 6}, {"relation": "zero_out"}, {"colluders": 1}, {"dropouts": 1}, {"attempts": 2}),
        {"sites": [site("a"), site("b")]},
        {"sites": [site("a", records=10), site("b"), site("c")]},
        {"sites": [site("a", weight=2), site("b"), site("c")]},
        {"sites": [site("b"), site("a"), site("c")]},
        {"sites": [site("a", certificate="b.pem"), site("b", certificate="a.pem"), site("c")]},
    ]
    digests = {read_roster(written(keys, **change)).digest for change in changes}
    assert len(digests | {plain.digest}) == len(changes) + 1
