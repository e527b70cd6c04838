"""What the subcommands of `headrace groups` have in common: their options, and the question before a change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from ..errors import HeadraceError
from .connection_options import Command
from .formatting import is_terminal, say

_SHOWN_RANGES = 3


def no_such_group(name: str) -> HeadraceError:
    return HeadraceError(f"there is no group {name!r}: `headrace groups` lists those that exist")


def change_options(command: Command) -> Command:
    """Adds --dry-run and --yes."""
    for option in (
        click.option("--yes", is_flag=True, help="Make the changes without asking."),
        click.option("--dry-run", is_flag=True, help="Only show the changes.  [default: unless in a terminal]"),
    ):
        command = option(command)
    return command


def check_change_options(yes: bool, dry_run: bool) -> None:
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run cannot be combined")


def may_change(question: str, yes: bool, dry_run: bool, form: str) -> bool:
    """Whether to carry out what was shown. Asks in a terminal, with the answer no as the default."""
    if yes or dry_run:
        return yes
    if form == "json" or not _can_ask():
        say("dry run: nothing was changed. --yes carries it out")
        return False
    if click.confirm(question, default=False):
        return True
    raise HeadraceError("nothing was changed")


def _can_ask() -> bool:
    return is_terminal() and sys.stdin.isatty()


def group_option(**options: Any) -> Callable[[Command], Command]:
    return click.option("-g", "--group", metavar="GROUP", required=True, **options)


def shown_ranges(ranges: Iterable[Sequence[int]]) -> str:
    """`70-119 130`, with the last offsets included; at most a few."""
    found = [f"{start}" if end == start + 1 else f"{start}-{end - 1}" for start, end in ranges]
    more = f" and {len(found) - _SHOWN_RANGES} more" if found[_SHOWN_RANGES:] else ""
    return " ".join(found[:_SHOWN_RANGES]) + more
