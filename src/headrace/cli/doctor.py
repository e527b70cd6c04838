"""`headrace doctor`."""

from __future__ import annotations

import click

from .commands import command
from .doctor_report import examine


@command(
    epilog="""\b
Examples:
  headrace doctor                              what is here, and what is missing
  headrace doctor local spark                  exit code 1 if these two extras cannot be used
  python -m headrace doctor                    the same, without the extra `cli`
"""
)
@click.argument("extras", nargs=-1, metavar="[EXTRA]...")
@click.pass_context
def doctor(context: click.Context, extras: tuple[str, ...]) -> None:
    """Show what is installed, what is missing, and the commands that fix it.

    Exit code 1 if something is broken. With the names of extras, such as `local` or `spark`, exit code 1 if something
    that they need is broken or missing.
    """
    text, code = examine(extras)
    click.echo(text)
    context.exit(code)
