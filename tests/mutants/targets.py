"""The mutated modules, and the tests that must find a mutation of each."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("dpca_tasks/accounting", "dpca_tasks/privacy", "dpca_tasks/queries", "dpca_tasks/noise", "dpca_tasks/sums"),
    *("dpca_tasks/kernels", "dpca_tasks/refinement", "dpca_tasks/sites", "storage/ledger", "storage/trail"),
    *("storage/backups", "storage/registry", "storage/datasets", "storage/formats", "flows/releases"),
    *("flows/sites", "flows/families", "flows/commands"),
)
SHORT = "not audit and not audit_only"
"""The tests that a mutation runs, as an expression of markers."""


def modules() -> list[str]:
    """Return the names of all mutated modules."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.name != "__init__.py"]


def source_file(module: str) -> Path:
    """Return the file of a module."""
    return ROOT / Path(*module.split(".")).with_suffix(".py")


def own_tests(module: str) -> list[str]:
    """Return the tests of the mirrored folder that import the module, its own file first, or the whole folder."""
    folder, name = module.rpartition(".")[::2]
    files = sorted((ROOT / "tests" / Path(*folder.split("."))).glob("test_*.py"))
    files.sort(key=lambda file: file.stem != f"test_{name}")
    return _names([file for file in files if _imports(file, module)] or files)


def wider_tests(module: str) -> list[str]:
    """Return the tests of other folders that import the module."""
    mirror = ROOT / "tests" / Path(*module.split(".")[:-1])
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return _names(file for file in files if file.parent != mirror and _imports(file, module))


def _names(files: Iterable[Path]) -> list[str]:
    return [str(file.relative_to(ROOT)) for file in files]


def _imports(file: Path, module: str) -> bool:
    folder, name = module.rpartition(".")[::2]
    dotted = rf"\b{re.escape(module)}\b"
    imported = rf"from {re.escape(folder)} import [^\n]*\b{name}\b"
    return re.search(f"{dotted}|{imported}", file.read_text()) is not None
