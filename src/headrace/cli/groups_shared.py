"""What the subcommands of `headrace groups` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from ..errors import HeadraceError
from .connection_options import Command

_SHOWN_RANGES = 3


def no_such_group(name: str) -> HeadraceError:
    return HeadraceError(f"there is no group {name!r}: `headrace groups` lists those that exist")


def group_option(**options: Any) -> Callable[[Command], Command]:
    return click.option("-g", "--group", metavar="GROUP", required=True, **options)


def shown_ranges(ranges: Iterable[Sequence[int]]) -> str:
    """`70-119 130`, with the last offsets included; at most a few."""
    found = [f"{start}" if end == start + 1 else f"{start}-{end - 1}" for start, end in ranges]
    more = f" and {len(found) - _SHOWN_RANGES} more" if found[_SHOWN_RANGES:] else ""
    return " ".join(found[:_SHOWN_RANGES]) + more
