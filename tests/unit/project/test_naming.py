"""Names in the source: class names are unique, and `is_…` methods change nothing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
_QUESTIONS = ("is_", "has_", "can_", "may_", "needs_")


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        yield str(file.relative_to(SOURCE)), ast.parse(file.read_text())


def test_no_two_classes_have_the_same_name() -> None:
    places = defaultdict(set)
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_method_that_asks_changes_no_attribute() -> None:
    found = []
    for file, tree in trees():
        for node in ast.walk(tree):
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function and node.name.lstrip("_").startswith(_QUESTIONS):
                found += [f"{file}: {node.name}: {change}" for change in changes(node)]
    assert found == []


def changes(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        if any(isinstance(part, ast.Attribute) for target in targets for part in ast.walk(target)):
            yield ast.unparse(node)
