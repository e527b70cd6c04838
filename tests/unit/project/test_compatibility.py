"""The command that writes docs/compatibility.md: rows of versions, and their order."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PAGE = "before\n<!-- kafka -->\n| Kafka | tests |\n|---|---|\n| 4.1.1 | old |\n<!-- /kafka -->\nafter\n"


@pytest.fixture(scope="module")
def command() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compatibility", ROOT / ".ci" / "compatibility.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def rows_of(page: str) -> list[str]:
    return [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")][1:]


def test_a_row_replaces_that_of_the_same_minor_version(command: ModuleType) -> None:
    page = command.with_row(PAGE, "kafka", "4.1.2", "| 4.1.2 | new |")
    assert page == PAGE.replace("| 4.1.1 | old |", "| 4.1.2 | new |")


def test_rows_are_in_the_order_of_versions(command: ModuleType) -> None:
    page = PAGE
    for version in ("4.10.0", "3.9.2", "4.2.0"):
        page = command.with_row(page, "kafka", version, f"| {version} | ok |")
    assert rows_of(page) == ["3.9.2", "4.1.1", "4.2.0", "4.10.0"]
    assert page.startswith("before\n")
    assert page.endswith("after\n")


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("3 passed in 1.2s", "3 passed"),
        ("= 1 failed, 20 passed, 4 skipped, 2 errors in 3.1s =", "20 passed, 3 failed, 4 skipped"),
        ("", ""),
    ],
)
def test_the_counts_of_a_run(command: ModuleType, line: str, counts: str) -> None:
    assert command.counts_of(line) == counts


def test_every_core_test_exists(command: ModuleType) -> None:
    assert [path for path in (*command.INTEGRATION, *command.UNIT) if not (ROOT / path).exists()] == []


def test_the_page_has_a_table_for_each_part(command: ModuleType) -> None:
    for table in ("kafka", "python", "spark"):
        assert command.PAGE.read_text().count(f"<!-- {table} -->\n") == 1
