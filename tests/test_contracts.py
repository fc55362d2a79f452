"""The import contracts hold, no two modules import each other, and a planted violation of each rule is found."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("flows", "storage", "dpca_tasks")
CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}

PLANTED = {
    "packages": ("dpca_tasks/accounting/planted.py", "storage.errors"),
    "storage-and-core": ("storage/ledger/planted.py", "dpca_tasks.privacy.curator"),
    "core": ("dpca_tasks/queries/planted.py", "dpca_tasks.privacy.curator"),
    "mechanisms-and-rows": ("dpca_tasks/mechanisms/streams/planted.py", "dpca_tasks.records.blocks"),
    "post-processing": ("dpca_tasks/refinement/fission.py", "dpca_tasks.noise.keystream"),
    "mechanisms": ("dpca_tasks/mechanisms/subspace/planted.py", "dpca_tasks.mechanisms.subspace.wishart"),
    "storage": ("storage/ledger/planted.py", "storage.registry.publishing"),
    "flows": ("flows/reports/planted.py", "flows.fit"),
    "papers": ("flows/tune.py", "papers.lib.ratings"),
    "families": ("flows/families/planted.py", "prefect"),
    "core-and-services": ("dpca_tasks/sums/planted.py", "sqlalchemy"),
    "storage-and-schedulers": ("storage/formats/planted.py", "dask"),
    "audit-trail": ("storage/trail/planted.py", "sqlalchemy"),
    "consumers": ("storage/artifacts/planted.py", "sqlalchemy"),
}
"""For each contract, a new file and what it imports although it must not."""


def lint(root: Path) -> str:
    """Return what the import linter prints of the packages of a folder."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": "", "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def verdicts(printed: str) -> dict[str, bool]:
    """Return, for each contract, whether it was kept."""
    found = {}
    for contract, name in CONTRACTS.items():
        verdict = re.search(rf"^{re.escape(name)} (KEPT|BROKEN)", printed, re.MULTILINE)
        assert verdict, f"{name} is not in:\n{printed}"
        found[contract] = verdict[1] == "KEPT"
    return found


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.gz"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_holds(copied: Path) -> None:
    assert verdicts(lint(copied)) == dict.fromkeys(CONTRACTS, True)


def test_every_contract_has_a_planted_violation() -> None:
    assert PLANTED.keys() == CONTRACTS.keys()


@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_violation_breaks_its_contract(copied: Path, contract: str) -> None:
    file, module = PLANTED[contract]
    (copied / file).write_text(f"import {module}\n")
    assert not verdicts(lint(copied))[contract]


@pytest.mark.parametrize("container", ["flows", "storage", "dpca_tasks"])
def test_a_folder_that_no_layer_names_breaks_a_contract(copied: Path, container: str) -> None:
    (copied / container / "planted").mkdir()
    (copied / container / "planted" / "__init__.py").touch()
    layers = {"dpca_tasks": "core"}.get(container, container)
    assert not verdicts(lint(copied))[layers]


def circle(root: Path) -> list[str] | None:
    """Return modules that import each other in a circle, if any: at the top, in a function or for types alone."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        sources = [
            (node.module or "", alias.name) for node in tree if isinstance(node, ast.ImportFrom) for alias in node.names
        ]
        found = {name if f"{name}.{part}" not in files else f"{name}.{part}" for name, part in sources}
        graph[module] = {name for name in found if name in files and name != module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_no_modules_import_each_other() -> None:
    assert circle(ROOT) is None


@pytest.mark.parametrize(
    "planted",
    [
        "from dpca_tasks.sums.exact_sum import exact_sum",
        "def late():\n    from dpca_tasks.sums.exact_sum import exact_sum",
        "if TYPE_CHECKING:\n    from dpca_tasks.sums import exact_sum",
    ],
    ids=["at the top", "in a function", "for types"],
)
def test_a_planted_circle_is_found(copied: Path, planted: str) -> None:
    with (copied / "dpca_tasks/sums/partial_sums.py").open("a") as file:
        file.write(f"\n\n{planted}\n")
    found = circle(copied)
    assert found is not None
    assert "dpca_tasks.sums.partial_sums" in found


def test_no_file_assigns_a_name_of_its_module_twice() -> None:
    """A second value would silently change what the code above it means; linters see this of functions alone."""
    assert [found for file in own_files() for found in assigned_twice(file.read_text(), name=file.name)] == []


def test_a_name_that_is_assigned_twice_is_found() -> None:
    assert assigned_twice("BITS = 15\nA, B = 1, 2\nBITS: int = 36\n", name="planted.py") == ["planted.py: BITS"]


def own_files() -> Iterator[Path]:
    for package in ("dpca_tasks", "flows", "papers", "storage", "benchmarks", "tests"):
        yield from sorted((ROOT / package).rglob("*.py"))


def assigned_twice(text: str, *, name: str) -> list[str]:
    counts: Counter[str] = Counter()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.TypeAlias):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            nodes = [node for target in targets if target is not None for node in ast.walk(target)]
            counts.update(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return [f"{name}: {found}" for found, times in counts.items() if times > 1 and found != "_"]
