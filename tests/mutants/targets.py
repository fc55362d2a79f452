"""The mutated modules, and the tests that must find a mutation of each.

Imports load one module with a mutation. No file of the tree changes.
"""

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.operators import Mutation, mutate

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


def describe(mutation: Mutation) -> str:
    """Return the text that `install` reads."""
    return json.dumps(asdict(mutation))


def install(described: str) -> None:
    """Load the mutated source when the module is imported from now on."""
    mutation = Mutation(**json.loads(described))
    assert mutation.module not in sys.modules, f"{mutation.module} was imported before its mutation was installed"
    sys.meta_path.insert(0, _Finder(mutation))


class _Finder(MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the mutated module for its name, and leave every other name to the usual finders."""
        if fullname != self.mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self.mutation)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutation: Mutation) -> None:
        super().__init__(fullname, path)
        self.mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        """Compile the mutated tree, and neither read nor write byte code."""
        path = self.get_filename(fullname)
        return compile(mutate(self.mutation, self.get_data(path).decode()), path, "exec")
