"""The names `storage` and `flows` are generic: nothing else claims them, and nothing imports them bare."""

import ast
import importlib.util
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dpca_tasks", "flows", "storage")
SOURCES = sorted(path for folder in (*PACKAGES, "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py"))


def bare_imports(source: str) -> list[int]:
    """List the lines that bind a package's own name: ``import storage``, ``from x import storage``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (alias.asname or alias.name) in PACKAGES
        or (isinstance(node, ast.Import) and alias.asname is None and alias.name.split(".")[0] in PACKAGES)
    ]


def test_the_three_packages_share_one_parent() -> None:
    parents = set()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        parents.add(Path(spec.origin).parent.parent)
    assert parents == {ROOT}


def test_no_other_distribution_claims_a_package() -> None:
    owners = packages_distributions()
    for package in PACKAGES:
        assert set(owners.get(package, ())) <= {"dpca-pipeline"}


def test_tests_are_packages_all_the_way_down() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize(
    "source",
    ["import storage", "import flows.cli", "from x import storage", "import numpy as flows"],
)
def test_a_bare_import_is_seen(source: str) -> None:
    assert bare_imports(source) == [1]


def test_no_module_imports_a_package_bare() -> None:
    found = {path.relative_to(ROOT): bare_imports(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}
