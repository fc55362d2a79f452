"""Mutations of a module: one small fault each, of the kinds made in numerics and protocols."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

type Change = tuple[str, ast.AST, ast.AST]
"""The name of an operator, a node of the tree, and the replacement of this node."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
RELATIONS = {"add_remove": "replace_one", "replace_one": "add_remove"}
BOUNDING = frozenset({"abs", "ceil", "floor", "max", "min", "nextafter", "sqrt"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutation:
    """One fault, named by its place and its text, so that a shift of lines does not rename the fault."""

    module: str
    function: str
    operator: str
    text: str
    occurrence: int
    line: int

    @property
    def key(self) -> str:
        """Return the name under which a judgement of this mutation is stored."""
        return f"{self.module}:{self.function}: {self.operator}: {self.text} #{self.occurrence}"


def mutations(module: str, source: str) -> list[Mutation]:
    """Return all mutations of a module, in the order of the source."""
    return [mutation for mutation, _ in _mutated(module, ast.parse(source))]


def mutate(mutation: Mutation, source: str) -> ast.Module:
    """Return the tree of the source with one mutation.

    Raises
    ------
    KeyError
        If the source does not contain the mutated text.
    """
    tree = ast.parse(source)
    for found, (_, old, new) in _mutated(mutation.module, tree):
        if found.key == mutation.key:
            changed = _Replacement(old, ast.copy_location(new, old)).visit(tree)
            assert isinstance(changed, ast.Module)
            return ast.fix_missing_locations(changed)
    raise KeyError(mutation.key)


class _Replacement(ast.NodeTransformer):
    """The replacement of one node, found by identity. The new node may contain the old one."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new node for the old one, and visit the parts of every other node."""
        if node is self.old:
            return self.new
        visited = self.generic_visit(node)
        assert isinstance(visited, ast.AST)
        return visited


def _mutated(module: str, tree: ast.Module) -> Iterator[tuple[Mutation, Change]]:
    seen = Counter[tuple[str, str, str]]()
    for function, node in _nodes(tree, ""):
        for operator, old, new in _changes(node):
            text = " ".join(f"{ast.unparse(old)} -> {ast.unparse(new)}".split())
            place = (function, operator, text)
            mutation = Mutation(module, *place, seen[place], getattr(old, "lineno", 0))
            seen[place] += 1
            yield mutation, (operator, old, new)


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield each node that runs, with the name of its function: no annotation, decorator, docstring or message."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (ast.JoinedStr, ast.TypeAlias)):
                continue
            inner = function
            if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                inner = f"{function}.{child.name}".lstrip(".")
            yield inner, child
            if not isinstance(child, ast.Raise):
                yield from _nodes(child, inner)


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield "off by one", node, ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if value in RELATIONS:
            yield "wrong relation", node, ast.Constant(RELATIONS[value])
        case ast.Compare(left, [operator], others) if type(operator) in COMPARISONS:
            yield "comparison", node, ast.Compare(left, [COMPARISONS[type(operator)]()], others)
        case ast.BinOp(left, ast.Add() | ast.Sub() as operator, right):
            yield "sign", node, ast.BinOp(left, ast.Sub() if isinstance(operator, ast.Add) else ast.Add(), right)
            yield "dropped term", node, left
        case ast.BinOp(_, ast.Mult() | ast.Div() | ast.Pow(), _):
            yield "factor 2", node, ast.BinOp(ast.Constant(2), ast.Mult(), node)
            yield "factor sqrt 2", node, ast.BinOp(ast.Constant(2**0.5), ast.Mult(), node)
        case ast.UnaryOp(ast.USub(), operand):
            yield "sign", node, operand
        case ast.BoolOp(operator, values):
            yield "dropped term", node, ast.BoolOp(operator, values[1:]) if len(values) > 2 else values[1]
            yield "dropped term", node, ast.BoolOp(operator, values[:-1]) if len(values) > 2 else values[0]
        case ast.If(ast.Compare(_, [ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()], _)):
            pass  # the mutation of the comparison negates it already
        case ast.If(test):
            yield "comparison", test, ast.UnaryOp(ast.Not(), test)
        case ast.Call():
            yield from _changes_of_call(node)
        case ast.Expr(ast.Call(function)):
            synced = "sync" in ast.unparse(function)
            yield "missing sync" if synced else "dropped call", node, ast.Pass()
        case ast.Raise():
            yield "swallowed exception", node, ast.Pass()
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield "early return", node, ast.Return(ast.Constant(None))


def _changes_of_call(node: ast.Call) -> Iterator[Change]:
    name = ast.unparse(node.func).rpartition(".")[2]
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    if name in BOUNDING and node.args:
        yield "dropped call", node, node.args[0]
    if len(node.args) >= 2 and name not in ("max", "min"):
        first, second, *others = node.args
        yield "swapped arguments", node, ast.Call(node.func, [second, first, *others], node.keywords)
