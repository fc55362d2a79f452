"""Functions that Numba compiles: their callers, and copies of the compiled code that a mutation does not change."""

import ast
import functools
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import grimp

from tests.mutants.operators import FUNCTIONS, Mutation
from tests.mutants.targets import PRODUCT, ROOT, compiled_modules, source_file


def copy_unchanged(module: str, folder: Path) -> None:
    """Copy Numba's files of all modules that do not import a mutated module to a new cache folder.

    Numba compares a function with its source file only. So it would reuse a function that calls a mutated one.
    """
    from numba.core.caching import UserProvidedCacheLocator  # reads the cache folder from the environment

    for name in compiled_modules():
        if module != name and module not in _imports().find_upstream_modules(name):
            file = source_file(name)
            to = folder / UserProvidedCacheLocator.get_suitable_cache_subpath(str(file))
            to.mkdir(parents=True, exist_ok=True)
            for kept in file.parent.glob(f"__pycache__/{file.stem}.*.nb[ci]"):
                shutil.copy2(kept, to)


@functools.cache
def _imports() -> grimp.ImportGraph:
    """Return the imports between the product's modules."""
    first, *others = PRODUCT
    return grimp.build_graph(first, *others, cache_dir=None)


def callers(mutation: Mutation, entered: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the entered functions that use the mutated function by name, also through functions that no test enters.

    A mutation outside functions belongs to all functions of its module.
    """
    mutated = mutation.function.rpartition(".")[2]
    named = {mutated} if mutated else {name for module, name in _used_names() if module == mutation.module}
    found, size = set[tuple[str, str]](), -1
    while size < len(named) + len(found):
        size = len(named) + len(found)
        using = {function for function, names in _used_names().items() if names & named}
        found |= using & set(entered)
        named |= {name.rpartition(".")[2] for _, name in using - found}
    return found


@functools.cache
def _used_names() -> dict[tuple[str, str], frozenset[str]]:
    """Return the names in the body of each function of the product."""
    found = dict[tuple[str, str], frozenset[str]]()
    for package in PRODUCT:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for name, node in _functions(ast.parse(file.read_text()), ""):
                used = (each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute)))
                names = (each.id if isinstance(each, ast.Name) else each.attr for each in used)
                found[module, name] = frozenset(names)
    return found


def _functions(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            name = f"{outer}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _functions(child, name)
