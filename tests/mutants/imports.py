"""Imports that load one module with a mutation. No file of the tree changes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.mutants.operators import Mutation, mutate


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
