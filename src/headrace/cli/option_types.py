"""Types of options. click's own names ("integer range") appear in its errors and in the help."""

from __future__ import annotations

import click


class WholeNumber(click.IntRange):
    name = "whole number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "NUMBER"


class Seconds(click.FloatRange):
    name = "number of seconds"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "SECONDS"
