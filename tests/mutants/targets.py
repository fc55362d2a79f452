"""The mutated modules, and the tests that must find a mutation of each."""

import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("dpca_tasks/accounting", "dpca_tasks/privacy", "dpca_tasks/queries", "dpca_tasks/noise", "dpca_tasks/sums"),
    *("dpca_tasks/kernels", "dpca_tasks/refinement", "dpca_tasks/sites", "storage/ledger", "storage/trail"),
    *("storage/backups", "storage/registry", "storage/datasets", "storage/formats", "flows/releases"),
    *("flows/sites", "flows/families", "flows/commands", "flows/published.py", "flows/cli.py"),
)
PRODUCT = ("dpca", "dpca_tasks", "storage", "flows")
SHORT = "not audit and not audit_only"
"""The tests that a mutation runs, as an expression of markers."""


def modules() -> list[str]:
    """Return the names of all mutated modules."""
    paths = [ROOT / package for package in PACKAGES]
    files = (file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py"))))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.name != "__init__.py"]


def source_file(module: str) -> Path:
    """Return the file of a module."""
    return ROOT / Path(*module.split(".")).with_suffix(".py")


def mirror(module: str) -> str:
    """Return the folder of tests that mirrors the folder of a module."""
    return "/".join(("tests", *module.split(".")[:-1])) + "/"


@functools.cache
def compiled_modules() -> frozenset[str]:
    """Return the names of all modules with functions that Numba compiles, whose cached code a trial must not use."""
    return frozenset(module for module in modules() if "numba" in source_file(module).read_text())
