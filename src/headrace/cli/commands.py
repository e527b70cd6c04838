"""`command()` and `group()`: what all commands of the command line have in common.

An option that is not repeatable and is given twice is an error: click would use the last one, and `headrace tail -t a
-t b` would show half of what was asked for. Flags may be repeated, because that changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource


class Command(click.Command):
    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if context.resilient_parsing:  # the completion of shells
            return super().parse_args(context, args)
        _, _, order = self.make_parser(context).parse_args(args=list(args))
        counts = Counter(param for param in order if _takes_one_value(param))
        _refuse([param for param, count in counts.items() if count > 1], context)
        rest = super().parse_args(context, args)
        _refuse([param for param in self.params if _is_given_to_parent(param, context)], context)
        return rest


class Group(Command, click.Group):
    command_class = Command


def command(**settings: Any) -> Callable[[Callable[..., Any]], Command]:
    return click.command(cls=Command, **settings)


def group(**settings: Any) -> Callable[[Callable[..., Any]], Group]:
    return click.group(cls=Group, **settings)


def _takes_one_value(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)


def _is_given_to_parent(param: click.Parameter, context: click.Context) -> bool:
    """`headrace groups -g a reset -g b`: options before the name of a subcommand are its defaults."""
    defaults = context.default_map or {}
    is_given = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    return is_given and param.name in defaults and not getattr(param, "is_flag", False)


def _refuse(params: list[click.Parameter], context: click.Context) -> None:
    for param in params:
        raise click.UsageError(f"{' / '.join(param.opts)} is given more than once", context)
