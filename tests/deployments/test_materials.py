"""What is handed out with the wheel: a bill of materials, licences, and a wheel that two builders make alike."""

import os
from pathlib import Path

import pytest

from tests.deployments.lock import entries
from tests.deployments.materials import PARTS, Bill, bills, build_wheel, check, copy_sources, licences, not_permitted


@pytest.fixture(scope="module")
def made() -> dict[str, Bill]:
    return bills()


@pytest.mark.parametrize("part", PARTS)
def test_bill_names_every_locked_distribution_with_its_hashes_and_nothing_else(
    made: dict[str, Bill], part: str
) -> None:
    locked, found = entries(PARTS[part]), made[part]["components"]
    assert sorted(licences(made[part])) == sorted(
        name for name in locked if "sys_platform == 'win32'" not in locked[name]
    )
    for component in found:
        hashes = [
            each["content"] for reference in component["externalReferences"] for each in reference.get("hashes", [])
        ]
        entry = locked[component["name"].lower().replace("_", "-").replace(".", "-")]
        assert hashes
        assert all(f"sha256:{digest}" in entry for digest in hashes)
        assert f"=={component['version']}" in entry


def test_every_installed_distribution_has_a_permitted_licence(made: dict[str, Bill]) -> None:
    assert not_permitted(licences(made["image"]) | licences(made["consumer"])) == {}


def test_a_licence_that_may_not_be_passed_on_is_found() -> None:
    assert not_permitted({"a": "MIT", "b": "GPL-3.0-only", "c": "MIT AND AGPL-3.0-only", "d": ""}) == {
        "b": "GPL-3.0-only",
        "c": "MIT AND AGPL-3.0-only",
        "d": "",
    }


@pytest.mark.audit_only
@pytest.mark.parametrize("part", PARTS)
def test_bill_is_valid_by_the_schema(made: dict[str, Bill], part: str) -> None:
    check(made[part])
    with pytest.raises(ValueError, match="specVersion"):
        check({**made[part], "specVersion": 7})


def test_two_builders_make_the_same_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_wheel(copy_sources(tmp_path / "one"), tmp_path)
    bytes_of_first = first.read_bytes()
    other = copy_sources(tmp_path / "elsewhere" / "two")
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    for name, value in {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "7", "LC_ALL": "C", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (into := tmp_path / "out").mkdir()
    assert build_wheel(other, into).read_bytes() == bytes_of_first
