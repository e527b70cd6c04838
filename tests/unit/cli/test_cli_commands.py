"""Rules that hold for every command: nothing is overwritten in silence, and nothing destroyed without a question."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from headrace.cli.app import headrace as root
from headrace.cli.commands import Command
from support.harness.shell import headrace


def commands(
    found: click.Command = root, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if path:
        yield path, found
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            below = found.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


ALL = dict(commands())
ONCE = [
    (path, option)
    for path, each in ALL.items()
    for option in each.params
    if isinstance(option, click.Option) and not (option.multiple or option.is_flag)
]


def test_there_are_all_commands() -> None:
    assert {("tail",), ("groups", "reset"), ("demo", "crash")} <= ALL.keys()


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_refuses_options_that_are_repeated(path: tuple[str, ...]) -> None:
    assert isinstance(ALL[path], Command)


@pytest.mark.parametrize(("path", "option"), ONCE, ids=lambda it: " ".join(it) if isinstance(it, tuple) else it.name)
def test_an_option_that_takes_one_value_cannot_be_given_twice(path: tuple[str, ...], option: click.Option) -> None:
    """This is checked first, whatever the values are."""
    context = click.Context(ALL[path], info_name=path[-1])
    with pytest.raises(click.UsageError, match="is given more than once"):
        ALL[path].parse_args(context, [option.opts[-1], "x", option.opts[0], "x"])


def test_a_value_before_the_subcommand_is_not_overwritten_either() -> None:
    done = headrace("groups", "-g", "a", "reset", "-g", "b", "--to", "earliest")
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("headrace: -g / --group is given more than once")
    assert headrace("groups", "-g", "a", "delete", "-g", "b").code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "-C", "client.id=a", "-C", "client.id=b"),
        ("topics", "--create", "-t", "x", "-b", "localhost:1", "-c", "retention.ms=1", "-c", "retention.ms=2"),
        ("groups", "config", "-g", "x", "--set", "a=1", "--set", "a=2"),
        ("up", "--config", "a=1", "--config", "a=2"),
    ],
)
def test_a_setting_cannot_have_two_values(args: tuple[str, ...]) -> None:
    done = headrace(*args)
    assert (done.code, done.out) == (2, b"")
    assert "is given more than once, with different values" in done.err


def test_every_command_that_deletes_or_resets_asks() -> None:
    destroying = {
        path: each
        for path, each in ALL.items()
        if {path[-1], *(str(param.name) for param in each.params)} & {"delete", "reset", "purge", "drop"}
    }
    assert destroying.keys() == {("topics",), ("groups", "reset"), ("groups", "delete")}
    for each in destroying.values():
        assert {"yes", "dry_run"} <= {str(param.name) for param in each.params}
