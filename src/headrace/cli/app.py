"""The list of commands, and the handling of their errors.

exit code 0   success, or the reader of the output closed the pipe
exit code 1   failure: one message on stderr, with a stack trace only with --debug
exit code 2   the command line, or a setting, is invalid: one line on stderr
exit code 3   `lag`: the threshold is exceeded; `status`: stopped
exit code 4   `status`: crashed
exit code 130 Ctrl-C (SIGINT)
exit code 143 SIGTERM; 129 the terminal was closed (SIGHUP)
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import click

from .._version import __version__
from ..errors import ConfigError, HeadraceError, KafkaError, NetworkError, RequestTimeoutError
from . import INTERRUPTED
from .commands import Group
from .formatting import printable
from .pipes import PipeClosed, detect_closed_pipe, discard_output

# Modules are imported on demand: `headrace status` does not import `headrace tail`, and `headrace --help` imports none.
_COMMANDS = {
    "up": ("broker", "Start Apache Kafka on this machine."),
    "down": ("broker", "Stop the cluster that `headrace up` started."),
    "status": ("broker", "Show whether that cluster runs, its address and its files."),
    "run": ("run", "Run a Spark pipeline until its tables have all records."),
    "new": ("new", "Create a small Spark pipeline to start from."),
    "topics": ("topics", "List, describe, create and delete topics."),
    "produce": ("produce", "Write lines of text or JSON to a topic."),
    "tail": ("tail", "Follow a topic: print its records, one per line."),
    "lag": ("lag", "Show how far behind a group or a Spark query is."),
    "groups": ("groups", "List, describe, reset, delete and configure groups."),
    "ui": ("ui", "Serve a live page: groups, lag, lanes, rebalances, topics."),
    "doctor": ("doctor", "Show what is installed, what is missing, and how to fix it."),
    "demo": ("demo", "Demonstrate KIP-333 and KIP-983, in a minute each."),
}
# Log lines with errors that the command shows itself: the logger, and what the messages contain.
_SHOWN_ERRORS = {"headrace._aio.network.connections": "giving up: ", "headrace._aio.produce.answers": "not delivered. "}


class _Commands(Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f".{module}", __package__), name)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and (near := difflib.get_close_matches(args[0], _COMMANDS, n=1)):
            context.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    # All output is written in these two methods. By default, click exits with code 1 and no message at a closed pipe.
    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with detect_closed_pipe():
            return super().make_context(*args, **options)

    def invoke(self, context: click.Context) -> Any:
        with detect_closed_pipe():
            return super().invoke(context)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  headrace up                                  Apache Kafka on this machine
  echo hello | headrace produce -t greetings --create
  headrace tail -t greetings -o beginning -e
  headrace lag -g billing --watch
""",
)
@click.version_option(__version__, prog_name="headrace")
@click.option("--debug", is_flag=True, help="Show stack traces.")
def headrace(debug: bool) -> None:
    """Kafka for Python and PySpark: run a broker on this machine, and work with this or any other cluster."""


def run() -> None:
    debug = "--debug" in sys.argv[1:]
    try:
        with contextlib.nullcontext() if debug else _errors_shown_once():
            # A command that exits with its own code returns it here.
            sys.exit(headrace.main(prog_name="headrace", standalone_mode=False))
    except PipeClosed:
        discard_output()
        sys.exit(0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        advice = f" ({error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        text = " ".join(error.format_message().split()).removesuffix(".")
        click.echo(printable(f"headrace: {text}{advice}"), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        _fail(error, debug, 2)
    except (NetworkError, RequestTimeoutError) as error:
        if isinstance(error.__cause__, KafkaError):  # a broker has answered
            _fail(error, debug, 1)
        # The cause is more useful than the timeout.
        unreachable = error.__cause__ if isinstance(error.__cause__, NetworkError) and not debug else error
        _fail(unreachable, debug, 1, ". Is the broker running, and -b right?")
    except HeadraceError as error:
        _fail(error, debug, 1)
    except Exception as error:  # noqa: BLE001  # show any error in one line
        _fail(error, debug, 1, f" ({type(error).__name__}; `headrace --debug …` shows where)")


@contextlib.contextmanager
def _errors_shown_once() -> Iterator[None]:
    """Hide the log lines of a client whose login is rejected, and of records that are not delivered: the command shows
    the error itself."""
    loggers = [logging.getLogger(name) for name in _SHOWN_ERRORS]
    for logger in loggers:
        logger.addFilter(_is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return _SHOWN_ERRORS[record.name] not in record.getMessage()


def _fail(error: Exception, debug: bool, code: int, advice: str = "") -> None:
    if debug:
        raise error
    # Errors of headrace may have several lines; other errors are joined into one line.
    text = " ".join(str(error).split()) if not isinstance(error, HeadraceError) else str(error)
    lines = [printable(line) for line in f"headrace: {text.removesuffix('.') if advice else text}{advice}".split("\n")]
    click.echo("\n".join(lines), err=True)
    sys.exit(code)
