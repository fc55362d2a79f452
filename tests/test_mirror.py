"""The tests mirror the packages by folder: who changes a folder of a package finds its tests at the same place."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("dpca_tasks", "flows", "papers", "storage")
ELSEWHERE = {
    "dpca_tasks/audit": "audits",
    "storage/database/migrations": "storage/database",
    "storage/database/migrations/versions": "storage/database",
}
"""Folders whose tests are at another place in ``tests/``."""


def test_every_folder_of_a_package_has_its_folder_of_tests() -> None:
    for folder in sorted(folders_with("[!_]*.py")):
        tests = ROOT / "tests" / ELSEWHERE.get(folder, folder)
        assert list(tests.glob("test_*.py")), f"{folder} has no tests in tests/{folder}"


def test_every_folder_of_tests_mirrors_a_folder_of_a_package() -> None:
    known = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in ROOT.glob(f"{name}/**/")}
    found = folders_with("test_*.py", below=ROOT / "tests")
    assert sorted(found - known) == []


def folders_with(pattern: str, *, below: Path = ROOT) -> set[str]:
    """Return the folders of the packages with such files, as they are named there."""
    files = (path for name in PACKAGES for path in (below / name).rglob(pattern))
    return {path.parent.relative_to(below).as_posix() for path in files}
