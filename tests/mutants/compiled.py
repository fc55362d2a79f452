"""Compiled functions that a mutation does not change, copied from the tree so that a trial need not compile them."""

import ast
import functools
import shutil
from pathlib import Path

from tests.mutants.targets import compiled_modules, source_file


def copy_unchanged(module: str, folder: Path) -> None:
    """Copy Numba's files of all modules that do not import a mutated module to a new cache folder.

    Numba compares a function with its source file only. So it would reuse a function that calls a mutated one.
    """
    from numba.core.caching import UserProvidedCacheLocator  # reads the cache folder from the environment

    for name in compiled_modules():
        if module not in _imported_by(name):
            file = source_file(name)
            to = folder / UserProvidedCacheLocator.get_suitable_cache_subpath(str(file))
            to.mkdir(parents=True, exist_ok=True)
            for kept in file.parent.glob(f"__pycache__/{file.stem}.*.nb[ci]"):
                shutil.copy2(kept, to)


@functools.cache
def _imported_by(module: str) -> frozenset[str]:
    """Return a module and all modules of this project that it imports, directly or not."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in found and source_file(name).is_file():
            found.add(name)
            waiting += _imports(name)
    return frozenset(found)


@functools.cache
def _imports(module: str) -> list[str]:
    names = list[str]()
    for node in ast.walk(ast.parse(source_file(module).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names += [each.name for each in node.names]
    return names
