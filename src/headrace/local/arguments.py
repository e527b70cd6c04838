"""Checks the arguments of `LocalBroker` and its methods before anything is started.

A wrong type raises TypeError, an invalid value `LocalBrokerError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._arguments import function_of, number_of, short_repr, whole_number_of
from .errors import LocalBrokerError
from .secured import check_users
from .settings import check_overrides

_HEAP = re.compile(r"[1-9][0-9]*[kKmMgGtT]?")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}(-[A-Za-z0-9]+)*")
_RACK = re.compile(r"[^\s=\\]+")


def check_size(brokers: Any, port: Any) -> None:
    if whole_number_of("brokers", brokers) < 1:
        raise LocalBrokerError(f"a cluster needs at least one broker, not {brokers}")
    if port is not None and not 1 <= whole_number_of("port", port) <= 65_536 - brokers:
        raise LocalBrokerError(f"{port} is not a valid first port for {brokers} broker(s)")


def check_port(name: str, port: Any) -> None:
    if port is not None and not 1 <= whole_number_of(name, port) <= 65_535:
        raise LocalBrokerError(f"{name}={port} is not a valid port: it must be between 1 and 65535")


def check_registry(registry: Any, port: Any) -> None:
    if not isinstance(registry, bool):
        raise TypeError(f"registry must be True or False, not {short_repr(registry)}")
    check_port("registry_port", port)
    if port is not None and not registry:
        raise LocalBrokerError("registry_port needs registry=True")


def check_racks(racks: Any) -> None:
    if racks is None:
        return
    if isinstance(racks, (str, bytes)) or not isinstance(racks, Sequence):
        raise TypeError(f"racks must be a list of names, not {short_repr(racks)}")
    if not racks:
        raise LocalBrokerError("racks must name at least one rack")
    for rack in racks:
        if not isinstance(rack, str):
            raise TypeError(f"a rack's name must be a string, not {short_repr(rack)}")
        if not _RACK.fullmatch(rack):
            raise LocalBrokerError(
                f"{short_repr(rack)} is not a valid rack name: it is empty, or contains whitespace, = or \\"
            )


def check_security(secure: Any, users: Any) -> None:
    if not isinstance(secure, bool):
        raise TypeError(f"secure must be True or False, not {short_repr(secure)}")
    if users is None:
        return
    if not isinstance(users, Mapping):
        raise TypeError(f"users must be a mapping of names to passwords, not a {type(users).__name__}")
    if users and not secure:
        raise LocalBrokerError("users need secure=True")
    for name, password in users.items():
        if not isinstance(name, str) or not isinstance(password, str):
            raise TypeError(f"the name and the password of the user {short_repr(name)} must be strings")
    check_users(users)


def overrides_in(properties: Any) -> dict[str, str]:
    """The properties as strings, as in a properties file."""
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties must be a mapping of names to values, not a {type(properties).__name__}")
    for name, value in properties.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a property must be a string, not {short_repr(name)}")
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise LocalBrokerError(f"{short_repr(name)} is not a valid property name")
        if not isinstance(value, (str, int, float)):
            raise TypeError(f"{name} must be a string, a number or a bool, not {short_repr(value)}")
    found = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in properties.items()}
    check_overrides(found)
    return found


def check_start(version: Any, start_timeout: Any, heap: Any, progress: Any) -> None:
    if not isinstance(version, str):
        raise TypeError(f"version must be a string, not {short_repr(version)}")
    if not _VERSION.fullmatch(version):
        raise LocalBrokerError(f"version={short_repr(version)} is not a version of Kafka, such as 4.3.1")
    check_heap(heap)
    number_of("start_timeout", start_timeout)
    if progress is not None:
        function_of("progress", progress)


def check_heap(heap: Any) -> None:
    if not isinstance(heap, str):
        raise TypeError(f"heap must be a string, not {short_repr(heap)}")
    if not _HEAP.fullmatch(heap):
        raise LocalBrokerError(f"heap={short_repr(heap)} is not a size for Java's -Xmx, such as 512m or 2g")


def check_java_options(options: Any) -> None:
    if isinstance(options, str) or not isinstance(options, Sequence):
        raise TypeError(f"java_options must be a list of strings, not {short_repr(options)}")
    for option in options:
        if not isinstance(option, str):
            raise TypeError(f"java_options must be a list of strings, but contains {short_repr(option)}")
        if not option.startswith("-"):
            raise LocalBrokerError(f"java_options: {short_repr(option)} is not an option of Java, such as -Xlog:gc")


def check_path(name: str, path: Any) -> None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, not {short_repr(path)}")


def check_tool(main_class: Any, args: Iterable[Any], given: Any, timeout: Any) -> None:
    for value in (main_class, *args, *(() if given is None else (given,))):
        if not isinstance(value, str):
            raise TypeError(f"a tool's class, arguments and input must be strings, not {short_repr(value)}")
        if value is not given and "\0" in value:
            raise LocalBrokerError(f"a command line cannot contain NUL characters: {short_repr(value)}")
    if timeout is not None:
        number_of("timeout", timeout)
