"""The places of a module that a mutation can change, and the changed source.

One mutation changes one place: a comparison, `and`, `or`, `not`, a constant, an operator, a condition that is taken to
be false, or a statement that is left out. Annotations, decorators, assertions and log lines are left alone: no test
has to notice them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

_OPERATORS: dict[type, type] = {
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
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_LEFT_OUT = (ast.Raise, ast.Continue, ast.Break)


class Mutation(NamedTuple):
    tree: ast.Module
    node: ast.expr | ast.stmt
    change: ast.expr | ast.stmt

    @property
    def line(self) -> int:
        return self.node.lineno

    def __str__(self) -> str:
        return f"{_first_line(self.node)}  →  {_first_line(self.change)}"

    def source(self) -> str:
        """The whole changed module."""
        return ast.unparse(copy.deepcopy(self.tree, {id(self.node): self.change}))  # the memo: the copy of this node


def mutations(source: str) -> list[Mutation]:
    tree = ast.parse(source)
    changes = ((node, _changed(node)) for node in _mutable(tree))
    return [Mutation(tree, node, change) for node, change in changes if change is not None]


def _first_line(node: ast.AST) -> str:
    first, *more = ast.unparse(node).splitlines()
    return first + (" …" if more else "")


def _mutable(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes below this one that a test should notice."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "keywords" if isinstance(node, ast.ClassDef) else ""):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert) or _is_log_line(child):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, (ast.expr, ast.stmt)):
                yield child
            yield from _mutable(child)


def _is_log_line(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(("log.", "logging."))


def _changed(node: ast.expr | ast.stmt) -> ast.expr | ast.stmt | None:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _OPERATORS:
            return _with(node, ops=[_OPERATORS[type(operator)]()])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator) if (
            type(operator) in _OPERATORS
        ):
            return _with(node, op=_OPERATORS[type(operator)]())
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            return ast.Constant(value + 1)
        case ast.If() | ast.IfExp():
            return _with(node, test=ast.Constant(False))
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            return ast.Pass()
        case _ if isinstance(node, _LEFT_OUT):
            return ast.Pass()
    return None


def _with(node: ast.expr | ast.stmt, **fields: object) -> ast.expr | ast.stmt:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
