"""Packaging as a new user sees it: the lock file, the wheel, the shipped dataset and the Makefile.

- The names `storage` and `flows` are generic. No other distribution provides them, and no module binds them by a plain
  import.
- Importing a package of the product loads few third-party packages, and no tool of the tests.
- The import contracts hold, no two modules import each other, and a planted violation of each rule is found.
- The tests mirror the folders of the packages.
"""

import ast
import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path

import hatchling.build
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deployments.lock import IMAGE, WHOLE, entries
from tests.deployments.manifests import read

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Build the wheel as an installer would."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = hatchling.build.build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as archive:
        yield archive


def test_lock_names_no_host() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "file:" not in LOCK


def test_every_locked_version_carries_a_hash() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert len(entries) > 100
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_lock_satisfies_every_direct_requirement() -> None:
    locked = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", LOCK, flags=re.MULTILINE)
    }
    extras = PROJECT["optional-dependencies"]
    locked_extras = ("pipeline", "local", "tables", "s3", "plots", "units", "postgres", "estimators", "anndata", "test")
    texts = [*PROJECT["dependencies"], *(text for extra in locked_extras for text in extras[extra])]
    for requirement in map(Requirement, texts):
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


def test_wheel_holds_every_file_of_the_four_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"dpca", "dpca_tasks", "flows", "storage", f"dpca_pipeline-{PROJECT['version']}.dist-info"}
    for package in ("dpca", "dpca_tasks", "flows", "storage"):
        files_here = (path.relative_to(ROOT) for path in (ROOT / package).rglob("*") if path.is_file())
        expected = {path.as_posix() for path in files_here if "__pycache__" not in path.parts}
        assert {name for name in wheel.namelist() if name.startswith(f"{package}/")} == expected


def test_wheel_ships_the_data_its_licence_and_the_command(wheel: zipfile.ZipFile) -> None:
    metadata = f"dpca_pipeline-{PROJECT['version']}.dist-info"
    assert wheel.read("flows/data/a9a.svm.gz") == (ROOT / "flows/data/a9a.svm.gz").read_bytes()
    assert b"CC BY 4.0" in wheel.read("flows/data/README.md")
    assert b"Apache License" in wheel.read(f"{metadata}/licenses/LICENSE")
    assert b"dpca = dpca.__main__:main" in wheel.read(f"{metadata}/entry_points.txt")


def test_shipped_a9a_is_the_known_data_set() -> None:
    packed = files("flows").joinpath("data", "a9a.svm.gz").read_bytes()
    rows = [line.split() for line in gzip.decompress(packed).decode("ascii").splitlines()]
    labels = Counter(row[0] for row in rows)
    entries = Counter(entry for row in rows for entry in row[1:])
    columns = Counter({int(entry.removesuffix(":1")): count for entry, count in entries.items()})
    assert len(rows) == 32_561
    assert labels == {"-1": 24_720, "+1": 7_841}
    assert columns.total() == 451_592
    assert (min(columns), max(columns), len(columns)) == (1, 123, 123)
    assert columns[123] == 1
    assert max(len(row) for row in rows) - 1 == 14
    assert all(len(set(row)) == len(row) for row in rows)


def make(target: str, *, at: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Run make with ``path`` first in PATH."""
    environment = os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["make", "--silent", target], cwd=at, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy the files from which an environment is built; interpreters and uv are replaced by commands that fail."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    for command in ("python3.13", "python3.12", "python3", "uv"):
        put_command(tmp_path / "bin" / command, "exit 127")
    return tmp_path


def put_command(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_make_reports_a_too_old_interpreter_in_one_line(clone: Path) -> None:
    done = make(".venv", at=clone, path=clone / "bin")
    message = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(message) == 1
    assert "Python >= 3.12" in message[0]
    assert not (clone / ".venv").exists()


def test_make_uses_the_first_new_enough_interpreter_and_leaves_no_partial_environment(
    clone: Path,
) -> None:
    base = clone / "bin/base"
    # the command succeeds, but prints no path, as an interpreter that is too old does
    put_command(clone / "bin/python3.13", "echo")
    put_command(clone / "bin/python3.12", f"echo {base}")
    put_command(base, "mkdir .venv; exit 1")
    done = make(".venv", at=clone, path=clone / "bin")
    assert done.returncode != 0
    assert f"with {base}" in done.stderr
    assert not (clone / ".venv").exists()


def test_environment_is_stale_exactly_when_lock_or_project_is_newer(clone: Path) -> None:
    stamp = clone / ".venv/.complete"
    stamp.parent.mkdir()
    stamp.touch()
    for name in ("pyproject.toml", "requirements.lock"):
        os.utime(clone / name, (1, 1))
    assert make(".venv", at=clone, path=clone / "bin").returncode == 0
    for name in ("pyproject.toml", "requirements.lock"):
        newer = stamp.stat().st_mtime + 60
        os.utime(clone / name, (newer, newer))
        assert make(".venv", at=clone, path=clone / "bin").returncode != 0
        os.utime(clone / name, (1, 1))


def test_every_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY:(.*)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    explained = re.findall(r"^([a-z-]+):.*## \S", makefile, flags=re.MULTILINE)
    assert sorted(explained) == sorted(phony[1].split())
    assert {"demo", "test", "audit", "lint", "bench", "data", "lock", "clean"} <= set(explained)


def test_ci_runs_lint_documents_tests_audits_then_every_service_and_the_pages() -> None:
    script = ROOT / ".ci/run"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in lines
    assert lines[-6:] == ["make lint", "make docs", "make test", "make audit", "make integration", "make browser"]


GENERIC = ("dpca_tasks", "flows", "storage")
PACKAGES = ("dpca", *GENERIC)
SOURCES = sorted(path for folder in (*PACKAGES, "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py"))


@cache
def imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Return all import statements of a source; the result is cached, because several tests read every file."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def bare_imports(source: str) -> list[int]:
    """Return the lines that bind a package's name, such as ``import storage`` or ``from x import storage``."""
    return [
        node.lineno
        for node in imports(source)
        for alias in node.names
        if (alias.asname or alias.name) in GENERIC
        or (isinstance(node, ast.Import) and alias.asname is None and alias.name.split(".")[0] in GENERIC)
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


def test_no_folder_of_tests_hides_a_package() -> None:
    assert str(ROOT / "tests") not in sys.path
    for package in PACKAGES:
        assert import_module(package).__path__[0] == str(ROOT / package)


@pytest.mark.parametrize(
    "source",
    ["import storage", "import flows.cli", "from x import storage", "import numpy as flows"],
)
def test_a_planted_bare_import_is_detected(source: str) -> None:
    assert bare_imports(source) == [1]


def test_no_module_binds_a_generic_package_name() -> None:
    found = {path.relative_to(ROOT): bare_imports(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


ARRAYS = "numpy scipy charset_normalizer"
SIGNATURES = "cryptography numpy"
SUMS = (
    "click cloudpickle colorama cryptography dask distributed jinja2 llvmlite locket markupsafe msgpack numba packaging"
    " psutil sortedcontainers tblib threadpoolctl tlz toolz tornado yaml zict"
)
MAY_LOAD = {
    "dpca_tasks.accounting": ARRAYS,
    "dpca_tasks": f"{ARRAYS} {SUMS}",
    "storage.trail": SIGNATURES,
    "dpca.registry.reader": "numpy",
    "dpca.backends": "click httpx idna obstore pygments rich",
    "storage.ledger": f"{SIGNATURES} greenlet sqlalchemy typing_extensions",
    "flows.cli": "annotated_doc shellingham typer",
}
"""Third-party top-level modules that importing all modules of each package may load."""

_LOAD = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    for module in pkgutil.walk_packages(getattr(importlib.import_module(name), "__path__", ()), name + "."):
        importlib.import_module(module.name)
files = {name: str(getattr(sys.modules[name], "__file__", None)) for name in set(sys.modules) - before}
tops = {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}
json.dump(sorted(top for top in tops if not top.startswith("_")), sys.stdout)  # with _: names inside compiled packages
"""


def loaded_by(*names: str) -> set[str]:
    """Import all modules of some packages in a new interpreter; return the loaded third-party top-level modules."""
    command = [sys.executable, "-W", "ignore", "-c", _LOAD, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", MAY_LOAD)
def test_a_package_loads_only_what_is_listed(package: str) -> None:
    assert loaded_by(package) - set(MAY_LOAD[package].split()) == set()


def test_deployed_flows_load_only_what_the_image_installs() -> None:
    owners, locked = packages_distributions(), set(entries(IMAGE))
    deployed = {found["entrypoint"].rpartition(".")[0] for found in read("prefect.yaml")["deployments"]}
    loaded = loaded_by(*deployed)
    assert {"prefect", "jsonschema"} <= loaded
    foreign = {top for top in loaded if not locked & {canonicalize_name(owner) for owner in owners.get(top, [])}}
    assert foreign == {"sphinx"}  # `whenever` imports sphinx if it is installed, as for `make docs`


@pytest.mark.parametrize("module", ["rfc3987_syntax", "lark", "moto", "cyclonedx", "playwright", "kubernetes_validate"])
def test_no_tool_and_no_format_checker_is_in_the_environment(module: str) -> None:
    assert importlib.util.find_spec(module) is None


def test_tools_are_in_their_own_lock_and_not_in_the_product() -> None:
    folder = ROOT / "tests" / "tools"
    requested = re.findall(r"(?m)^[\w-]+", (folder / "requirements.in").read_text(encoding="utf-8"))
    tools, product = entries(folder / "requirements.lock"), entries(WHOLE)
    assert {canonicalize_name(name) for name in requested} <= set(tools)
    assert not {canonicalize_name(name) for name in requested} & set(product)
    assert not re.search(r"://|--index|file:", (folder / "requirements.lock").read_text(encoding="utf-8"))
    assert all("==" in entry and "--hash=sha256:" in entry for entry in tools.values())


def test_packages_of_both_environments_have_one_version() -> None:
    tools, product = entries(ROOT / "tests" / "tools" / "requirements.lock"), entries(WHOLE)
    versions = {name: (tools[name].split()[0], product[name].split()[0]) for name in set(tools) & set(product)}
    assert len(versions) > 20
    assert {name: both for name, both in versions.items() if both[0] != both[1]} == {}


CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}

PLANTED = {
    "packages": ("dpca_tasks/accounting/planted.py", "dpca.errors"),
    "storage-and-core": ("storage/ledger/planted.py", "dpca_tasks.privacy.curator"),
    "core": ("dpca_tasks/queries/planted.py", "dpca_tasks.privacy.curator"),
    "mechanisms-and-rows": ("dpca_tasks/mechanisms/streams/planted.py", "dpca_tasks.records.blocks"),
    "post-processing": ("dpca_tasks/refinement/leading_pairs.py", "dpca_tasks.noise.keystream"),
    "mechanisms": ("dpca_tasks/mechanisms/subspace/planted.py", "dpca_tasks.mechanisms.subspace.wishart"),
    "storage": ("storage/ledger/planted.py", "storage.registry.publishing"),
    "flows": ("flows/reports/planted.py", "flows.jobs"),
    "papers": ("flows/tune.py", "papers.lib.ratings"),
    "families": ("flows/families/planted.py", "prefect"),
    "core-and-services": ("dpca_tasks/sums/planted.py", "sqlalchemy"),
    "storage-and-schedulers": ("storage/formats/planted.py", "dask"),
    "public-package": ("dpca/schemas/planted.py", "dpca.registry.reader"),
    "audit-trail": ("storage/trail/planted.py", "sqlalchemy"),
    "consumers": ("dpca/artifacts/planted.py", "sqlalchemy"),
}
"""For each contract, a new file and a forbidden import in it."""


def lint(root: Path) -> str:
    """Return the output of the import linter for the packages of a folder."""
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
    """Return, by contract name, whether the contract was kept."""
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


@pytest.mark.parametrize("container", ["dpca", "flows", "storage", "dpca_tasks"])
def test_a_folder_outside_the_layers_breaks_a_contract(copied: Path, container: str) -> None:
    (copied / container / "planted").mkdir()
    (copied / container / "planted" / "__init__.py").touch()
    layers = {"dpca_tasks": "core", "dpca": "public-package"}.get(container, container)
    assert not verdicts(lint(copied))[layers]


def named_imports(source: str) -> frozenset[tuple[str, str]]:
    """Return (module, name) of every ``from`` import, including those in functions and for types."""
    nodes = [node for node in imports(source) if isinstance(node, ast.ImportFrom)]
    return frozenset((node.module or "", alias.name) for node in nodes for alias in node.names)


def circle(root: Path) -> list[str] | None:
    """Return an import cycle of modules, if any; imports in functions and for types also count."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        sources = named_imports(path.read_text(encoding="utf-8"))
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
def test_a_planted_import_cycle_is_detected(copied: Path, planted: str) -> None:
    with (copied / "dpca_tasks/sums/partial_sums.py").open("a") as file:
        file.write(f"\n\n{planted}\n")
    found = circle(copied)
    assert found is not None
    assert "dpca_tasks.sums.partial_sums" in found


def test_no_file_assigns_a_name_of_its_module_twice() -> None:
    """Find names that a module assigns twice at its top level: there must be none.

    A second assignment would silently change earlier code. Linters report redefinitions of functions only.
    """
    assert [found for file in own_files() for found in assigned_twice(file.read_text(), name=file.name)] == []


def test_a_planted_second_assignment_is_detected() -> None:
    assert assigned_twice("BITS = 15\nA, B = 1, 2\nBITS: int = 36\n", name="planted.py") == ["planted.py: BITS"]


def own_files() -> Iterator[Path]:
    for package in ("dpca", "dpca_tasks", "flows", "papers", "storage", "benchmarks", "tests"):
        yield from sorted((ROOT / package).rglob("*.py"))


def assigned_twice(text: str, *, name: str) -> list[str]:
    counts: Counter[str] = Counter()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.TypeAlias):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            nodes = [node for target in targets if target is not None for node in ast.walk(target)]
            counts.update(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return [f"{name}: {found}" for found, times in counts.items() if times > 1 and found != "_"]


MIRROR_PACKAGES = ("dpca", "dpca_tasks", "flows", "papers", "storage")
ELSEWHERE = {
    "dpca_tasks/audit": "audits",
    "storage/database/migrations": "storage/database",
    "storage/database/migrations/versions": "storage/database",
}
"""Folders whose tests are elsewhere in ``tests/``."""


def test_every_folder_of_a_package_has_its_folder_of_tests() -> None:
    for folder in sorted(folders_with("[!_]*.py")):
        tests = ROOT / "tests" / ELSEWHERE.get(folder, folder)
        assert list(tests.glob("test_*.py")), f"{folder} has no tests in tests/{folder}"


def test_every_folder_of_tests_mirrors_a_folder_of_a_package() -> None:
    known = {path.relative_to(ROOT).as_posix() for name in MIRROR_PACKAGES for path in ROOT.glob(f"{name}/**/")}
    found = folders_with("test_*.py", below=ROOT / "tests")
    assert sorted(found - known) == []


def folders_with(pattern: str, *, below: Path = ROOT) -> set[str]:
    """Return the paths of package folders that contain files matching a pattern."""
    files = (path for name in MIRROR_PACKAGES for path in (below / name).rglob(pattern))
    return {path.parent.relative_to(below).as_posix() for path in files}
