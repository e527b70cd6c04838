"""The question before a command destroys something: the same rule for topics, groups and offsets.

--yes                            no question
--dry-run                        nothing is changed
in a terminal                    asks; the default answer is no
without one, or --format json    nothing is changed: a script has to say --yes
"""

from __future__ import annotations

import sys

import click

from ..errors import HeadraceError
from .connection_options import Command
from .formatting import is_terminal, printable, say


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
    if click.confirm(printable(question), default=False):
        return True
    raise HeadraceError("nothing was changed")


def _can_ask() -> bool:
    return is_terminal() and sys.stdin.isatty()
