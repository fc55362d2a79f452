"""Rosters and configurations of sites: they are checked before a site listens, and a digest covers every part."""

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.sites.roster import Member, Roster
from flows.cli import main
from flows.demo import Federation
from flows.parties.certificates import make_identity
from flows.sites.roster import Limits, read_config, read_roster
from tests.flows.sites.conftest import at_home, request
from tests.forger import forgeries


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
    "one site": ({"sites": [site("a")]}, "the roster lists 1 sites, but needs at least 2"),
    "no site": ({"sites": []}, "the roster lists 0 sites"),
    "equal names": ({"sites": [site("a"), site("a", certificate="b.pem")]}, "sites a occur twice"),
    "equal keys": ({"sites": [site("a"), site("b", certificate="a.pem")]}, "a and b have the same key"),
    "a site with the helper's key": ({"sites": [site("a"), site("b", certificate="helper.pem")]}, "have the same key"),
    "as many colluders as sites": ({"colluders": 3}, "colluders=3 and dropouts=0 must together be below 3"),
    "colluders and dropouts": ({"colluders": 1, "dropouts": 2}, "must together be below 3"),
    "no attempt": ({"attempts": 0}, "attempts=0 must be a whole number, at least 1"),
    "half a colluder": ({"colluders": 0.5}, "colluders=0.5 must be a whole number"),
    "no helper": ({"helper": "absent"}, "masks=helper needs an entry `helper`"),
    "other masks": ({"masks": "none"}, "masks='none' is not one of helper"),
    "another relation": ({"relation": "add"}, "relation='add' is not one of"),
    "no time": ({"timeout": 0}, "timeout=0 must be in seconds"),
    "unknown names": ({"sits": []}, "has unknown sits; it may have"),
    "nothing of the aggregator": ({"aggregator": "absent"}, "lacks aggregator"),
    **{
        f"the name {name[:9]!r}": ({"sites": [{**site("a"), "name": name}, site("b")]}, "must be a printable word")
        for name in ("", " a", "a:b", "a\nb", "helper", 129 * "a")
    },
    **{
        f"the address {address}": ({"sites": [site("a", address=address), site("b")]}, "must be an https URL")
        for address in ("https://x:port", "https://x:99999", "https://[x", "https://")
    },
    "clear text": ({"sites": [site("a", address="http://x"), site("b")]}, "must be an https URL"),
    "no certificate": ({"sites": [site("a", certificate="broken.pem"), site("b")]}, "not a file with one certificate"),
    "no records": ({"sites": [site("a", records=0), site("b")]}, "records=0 must be a whole number"),
    "no weight": ({"sites": [site("a", weight=0), site("b")]}, "weight=0 must be a whole number"),
    "no list": ({"sites": "a, b"}, "must be a list"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_roster_that_cannot_work_is_refused_in_one_line(keys: Path, case: str) -> None:
    facts, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=message) as refusal:
        read_roster(written(keys, **facts))
    assert "\n" not in str(refusal.value)


def test_yaml_that_is_not_a_mapping_is_refused(keys: Path) -> None:
    path = keys / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(InvalidInput, match="must be a mapping"):
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


def test_a_pipe_or_an_endless_file_is_refused_as_roster(keys: Path) -> None:
    os.mkfifo(keys / "pipe.yaml")
    for path in (keys / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(InvalidInput, match="cannot be read as YAML"):
            read_roster(path)


def test_the_digest_covers_noise_and_trust_and_no_addresses(keys: Path) -> None:
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


PARTIES = ("aggregator", "helper", "a", "b", "c", "d")
HONEST: dict[str, Any] = {
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
    **HONEST,
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
def rosters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rosters = tmp_path_factory.mktemp("rosters")
    for name in (*PARTIES, "other"):
        make_identity(name, rosters)
    return rosters


def digest(rosters: Path, content: Any) -> str | None:
    """Return the digest of a roster, or None if it is refused; a refusal must have one line."""
    path = rosters / "roster.yaml"
    path.write_text(yaml.safe_dump(content))
    try:
        return read_roster(path).digest
    except InvalidInput as refusal:
        if "\n" in str(refusal):
            raise
        return None


@pytest.mark.parametrize("masks", ["helper", "secure_sum"])
def test_a_forged_roster_file_is_refused_or_has_another_digest(rosters: Path, masks: str) -> None:
    honest = {**HONEST, "masks": masks}
    known = digest(rosters, honest)
    assert known is not None
    assert digest(rosters, {**OTHER, "aggregator": {"certificate": "a.pem"}, "masks": masks}) != known
    count, unseen = 0, []
    for kind, forged in forgeries(honest, {**OTHER, "masks": "helper" if masks == "secure_sum" else "secure_sum"}):
        count += 1
        is_address = any(kind.endswith(path) for path in PUBLIC_PATHS)
        unseen += [kind] if not is_address and digest(rosters, forged) == known else []
    assert count > 100
    # a roster without `masks` is equal to one with the default, the helper
    assert unseen == (["dropped masks"] if masks == "helper" else [])


def test_addresses_and_the_timeout_are_all_that_the_digest_leaves_out(rosters: Path) -> None:
    moved = {**HONEST, "timeout": 9, "helper": {**HONEST["helper"], "address": "https://new.example"}}
    assert digest(rosters, moved) == digest(rosters, HONEST)


def test_every_fact_of_a_roster_changes_its_digest() -> None:
    """Change each fact of a roster: the digest must change, except for the order of members.

    A site's noise and every masked message are bound to the digest.
    """
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


LIMITS = {"epsilon": 1, "delta": "1e-5", "methods": ["conv"]}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    configs = tmp_path_factory.mktemp("keys")
    for name in ("aggregator", "helper", "a", "b", "c"):
        make_identity(name, configs)
    written(configs)
    return configs


def config(configs: Path, **others: Any) -> Path:
    given = {"name": "a", "roster": "roster.yaml", "key": "a.key", "listen": "127.0.0.1:0", "dataset": "rows"}
    path = configs / "site.yaml"
    facts = {**given, "limits": LIMITS, **others}
    path.write_text(yaml.safe_dump({name: fact for name, fact in facts.items() if fact != "absent"}))
    return path


def test_a_sound_configuration_is_read(configs: Path) -> None:
    site = read_config(config(configs))
    assert (site.post.name, site.limits) == ("a", Limits(epsilon=1.0, delta=1e-5, methods=("conv",)))
    helper = read_config(config(configs, name="helper", key="helper.key", dataset="absent", limits="absent"))
    assert (helper.post.address, helper.limits) == ("https://h.example", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "x", "certificate": "a.pem"}, "site 'x' is not in the roster"),
        ({"certificate": "b.pem"}, "is not the certificate of a in the roster"),
        ({"limits": "absent"}, "lacks limits"),
        ({"limits": {"epsilon": 1}}, "lacks delta, methods"),
        ({"limits": {**LIMITS, "methods": ["best"]}}, "must list methods from"),
        ({"limits": {**LIMITS, "epsilon": "much"}}, "epsilon in limits of .* must be a positive number"),
        ({"limits": {**LIMITS, "epsilon": float("nan")}}, "epsilon in limits of .* must be a positive number"),
        ({"limits": {**LIMITS, "methods": ["conv_agn"]}}, "must list methods from cape_agn, "),
        ({"name": "helper", "key": "helper.key"}, "has unknown dataset, limits"),
        ({"password": "x"}, "has unknown password; it may have"),
    ],
)
def test_an_inconsistent_configuration_is_refused_in_one_line(
    configs: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        read_config(config(configs, **change))
    assert "\n" not in str(refusal.value)


def test_limits_hold_for_one_release(federation: Federation) -> None:
    limits = Limits(epsilon=1.0, delta=1e-5, methods=("cape_pca",))
    limits.check(request(federation))
    for change, message in (
        ({"method": "conv"}, "admits"),
        ({"epsilon": 1.1}, "above 1,"),
        ({"delta": 2e-5}, "above 1e-05"),
    ):
        with pytest.raises(Refused, match=message):
            limits.check(request(federation, **change))


def test_a_key_is_created_once_and_is_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["site", "key", "north", "--folder", str(tmp_path / "north"), "--json"]
    assert main(words) == 0
    made = json.loads(capsys.readouterr().out)
    assert Path(made["key"]).stat().st_mode & 0o777 == 0o600
    assert len(made["fingerprint"]) == 64
    assert "PRIVATE" not in Path(made["certificate"]).read_text()
    assert main(words) == 1
    assert "a key is never replaced" in capsys.readouterr().err


def test_the_operator_sees_limits_budget_and_releases(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_home(federation, "site-0"):
        assert main(["site", "status", "--config", str(federation.config("site-0")), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert main(["site", "status", "--config", str(federation.config("helper"))]) == 1
    assert (shown["site"], shown["dataset"], shown["epsilon_at_most"]) == ("site-0", "rows", 100.0)
    assert shown["sites"] == ["site-0", "site-1", "site-2"]
    assert "no status" in capsys.readouterr().err
