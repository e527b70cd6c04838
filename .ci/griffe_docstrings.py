"""Extends griffe, which reads the source for the API reference: adds the docstrings that Python finds at run time.

A method without a docstring has that of a base class (`inspect.getdoc`), and the classes of `headrace.sync` have those
of the asynchronous classes (`documented_as`). The source alone does not show either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

ASYNCHRONOUS = {
    "Admin": "_aio.admin.facade.AsyncAdmin",
    "Consumer": "_aio.consumer.AsyncConsumer",
    "Producer": "_aio.produce.producer.AsyncProducer",
    "ShareConsumer": "_aio.share.consumer.AsyncShareConsumer",
}


class SharedDocstrings(griffe.Extension):
    """Gives methods without a docstring that of the same method elsewhere."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        if pkg.path != "headrace":
            return
        for name, asynchronous in ASYNCHRONOUS.items():
            _copy(pkg[asynchronous].all_members, _target(pkg[name]))
        for name in ("Avro", "Json", "Protobuf"):
            _copy(_target(pkg["formats.Format"]).members, _target(pkg[f"formats.{name}"]))


def _copy(documented: dict[str, Any], to: Any) -> None:
    for name, method in _public(to):
        if name in documented and method.docstring is None:
            method.docstring = documented[name].docstring


def _public(of: Any) -> Iterator[tuple[str, Any]]:
    for name, member in of.all_members.items():
        if not name.startswith("_"):
            yield name, _target(member)


def _target(member: Any) -> Any:
    return member.final_target if member.is_alias else member
