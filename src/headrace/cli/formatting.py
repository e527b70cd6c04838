"""Formats output: tables and numbers for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

_CONTROLS = (*range(9), *range(10, 32), *range(127, 160))
# They change the order in which other characters are shown, or show nothing: 061C, 200E to 200F, 202A to 202E and 2066
# to 2069 are those of the bidirectional algorithm. Joiners (200C, 200D) belong to scripts and emoji.
_INVISIBLE = (0x061C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
_UNSAFE: dict[int, int | str] = {
    **dict.fromkeys(_CONTROLS, 0xFFFD),
    **{code: f"<U+{code:04X}>" for code in _INVISIBLE},
}


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> str:
    """A table with aligned columns; numbers are right-aligned. Lines are clipped to `width`, if it is given."""
    shown = [[_cell(value) for value in row] for row in rows]
    right = [
        bool(shown) and all(row[at] == "-" or row[at].lstrip("-")[:1].isdigit() or row[at][:1] in "+~" for row in shown)
        for at in range(len(heads))
    ]
    widths = [max(len(head), *(len(row[at]) for row in shown), 0) for at, head in enumerate(heads)]

    def line(cells: Sequence[str]) -> str:
        whole = "  ".join(
            cell.rjust(wide) if is_right else cell.ljust(wide)
            for cell, wide, is_right in zip(cells, widths, right, strict=True)
        )
        return clipped(whole.rstrip(), width)

    return "\n".join([click.style(line(heads), bold=True), *map(line, shown)])


def records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def words(found: Sequence[str]) -> str:
    """A list in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


def clipped(line: str, width: int | None) -> str:
    """The line, clipped to `width` characters if it is given."""
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + "…"


def document(value: Any) -> str:
    return json.dumps(value, indent=2)


def say(line: str) -> None:
    """Print a message to stderr, so that it is not part of the output in a pipe."""
    click.echo(printable(line), err=True)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def printable(text: str) -> str:
    """The text with control characters replaced, except tabs: a terminal would interpret them, and the text may come
    from an untrusted source. Those that change the direction of text are shown by their code, such as <U+202E>: they
    could make one name look like another one."""
    return text.translate(_UNSAFE)


def seconds(value: float | None) -> str | None:
    """A time span in at most two units: 0.4 s, 12 s, 3 min 20 s, 5 h 2 min, 3 d 4 h."""
    if value is None:
        return None
    if value < 0.95:
        return f"{max(value, 0.0):.1f} s"
    whole = round(value)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def numbers(found: Iterable[int]) -> str:
    """Partition numbers; consecutive ones as a range, such as 0-5."""
    parts: list[list[int]] = []
    for number in sorted(found):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
