"""The commands, and how their errors reach a person.

exit code 0   done
exit code 1   it failed: one message on stderr, a stack trace with --debug only
exit code 2   the command line makes no sense (click's own)
exit code 3   `lag`: the threshold is passed; `status`: stopped
exit code 4   `status`: crashed
exit code 130 Ctrl-C
"""

from __future__ import annotations

import importlib
import sys

import click

from headrace._version import __version__
from headrace.errors import ConfigError, HeadraceError, NetworkError, RequestTimeoutError

from .showing import printable

# Loaded when asked for: `headrace status` need not wait for what `headrace tail` needs.
_COMMANDS = {
    "up": "broker",
    "down": "broker",
    "status": "broker",
    "run": "run",
    "new": "new",
    "topics": "topics",
    "produce": "produce",
    "tail": "tail",
    "lag": "lag",
    "groups": "groups",
    "demo": "demo",
}


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f".{_COMMANDS[name]}", __package__), name)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  headrace up                                  Apache Kafka on this machine
  echo hello | headrace produce -t greetings
  headrace tail -t greetings -o beginning -e
  headrace lag -g billing --watch
""",
)
@click.version_option(__version__, prog_name="headrace")
@click.option("--debug", is_flag=True, help="Show stack traces.")
def headrace(debug: bool) -> None:
    """Kafka for Python and PySpark: a broker on this machine, and what a command line needs to work with any."""


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
    except ConfigError as error:
        _fail(error, debug, 2)
    except (NetworkError, RequestTimeoutError) as error:
        _fail(error, debug, 1, ". Is the broker running, and -b right?")
    except HeadraceError as error:
        _fail(error, debug, 1)
    except Exception as error:  # noqa: BLE001  # whatever it is, a person at a shell wants one line of it
        _fail(error, debug, 1, f" ({type(error).__name__}; `headrace --debug …` shows where)")


def _fail(error: Exception, debug: bool, code: int, advice: str = "") -> None:
    if debug:
        raise error
    # What a broker says of an error is part of it.
    text = " ".join(str(error).split()) if not isinstance(error, HeadraceError) else str(error)
    lines = [printable(line) for line in f"headrace: {text.removesuffix('.') if advice else text}{advice}".split("\n")]
    click.echo("\n".join(lines), err=True)
    sys.exit(code)
