"""The commands, and how their errors reach a person.

exit code 0   done
exit code 1   it failed: one message on stderr, a stack trace with --debug only
exit code 2   the command line makes no sense (click's own)
exit code 130 Ctrl-C
"""

from __future__ import annotations

import sys

import click

from headrace._version import __version__
from headrace.errors import HeadraceError

from .broker import down, status, up


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headrace")
@click.option("--debug", is_flag=True, help="Show stack traces.")
def headrace(debug: bool) -> None:
    """Kafka consumer for Python and PySpark: the local broker."""


headrace.add_command(up)
headrace.add_command(down)
headrace.add_command(status)


def run() -> None:
    debug = "--debug" in sys.argv[1:]
    try:
        # A command that exits with a code of its own returns it here.
        sys.exit(headrace.main(prog_name="headrace", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except HeadraceError as error:
        if debug:
            raise
        click.echo(f"headrace: {error}", err=True)
        sys.exit(1)
