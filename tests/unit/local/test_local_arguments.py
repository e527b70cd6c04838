"""Arguments that LocalBroker rejects before it starts anything."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalBroker
from headrace.local import LocalBrokerError
from headrace.local.secured import Secured

WRONG: dict[str, list[tuple[dict[str, Any], type[Exception]]]] = {
    "brokers": [
        *(({"brokers": value}, TypeError) for value in ("3", 1.5, None, True, [1])),
        *(({"brokers": value}, LocalBrokerError) for value in (0, -1)),
    ],
    "port": [
        *(({"port": value}, TypeError) for value in ("9092", 1.5, True)),
        *(({"port": value}, LocalBrokerError) for value in (0, -1, 65_536, 2**70)),
    ],
    "data_dir": [({"data_dir": value}, TypeError) for value in (5, b"x", [])],
    "properties": [
        *(({"properties": value}, TypeError) for value in ("a=b", [("a", "b")], 5, {5: "x"}, {"a": None}, {"a": []})),
        *(({"properties": value}, LocalBrokerError) for value in ({"": "x"}, {"a=b": 1}, {"a\nb": 1}, {"node.id": 7})),
    ],
    "secure": [({"secure": value}, TypeError) for value in ("yes", 1, None)],
    "users": [
        *(({"secure": True, "users": value}, TypeError) for value in ("me", ["me"], {5: "x"}, {"me": None})),
        ({"users": {"me": "secret"}}, LocalBrokerError),
        *(({"secure": True, "users": value}, LocalBrokerError) for value in ({"": "x"}, {"me": ""}, {"a b": "x"})),
    ],
    "racks": [
        *(({"racks": value}, TypeError) for value in ("abc", 5, [5], [None], {"a"})),
        *(({"racks": value}, LocalBrokerError) for value in ([], [""], ["a", "b c"], ["a\nb"])),
    ],
    "registry": [({"registry": value}, TypeError) for value in ("yes", 8081, None)],
    "registry_port": [
        *(({"registry": True, "registry_port": value}, TypeError) for value in ("8081", 1.5, True)),
        *(({"registry": True, "registry_port": value}, LocalBrokerError) for value in (0, -1, 65_536)),
        ({"registry_port": 8081}, LocalBrokerError),
    ],
    "version": [
        *(({"version": value}, TypeError) for value in (4, 4.3, None)),
        *(({"version": value}, LocalBrokerError) for value in ("", "latest", "../x", "4.3.1/..", "4")),
    ],
    "log_file": [({"log_file": value}, TypeError) for value in (5, b"x", [])],
    "start_timeout": [
        *(({"start_timeout": value}, TypeError) for value in ("60", None, True)),
        ({"start_timeout": math.nan}, ValueError),
    ],
    "heap": [
        *(({"heap": value}, TypeError) for value in (512, None)),
        *(({"heap": value}, LocalBrokerError) for value in ("", "lots", "-1m", "512mb", "1 g")),
    ],
    "java_options": [
        *(({"java_options": value}, TypeError) for value in ("-Xint", None, [1])),
        ({"java_options": ["Xint"]}, LocalBrokerError),
    ],
    "progress": [({"progress": value}, TypeError) for value in (5, "print", [])],
}


def test_every_parameter_has_wrong_values() -> None:
    assert list(inspect.signature(LocalBroker).parameters) == list(WRONG)


@pytest.mark.parametrize("parameter", WRONG)
def test_a_local_broker_refuses_wrong_arguments(parameter: str) -> None:
    for arguments, error in WRONG[parameter]:
        with pytest.raises(error) as caught:
            LocalBroker(**arguments)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) > 10


def test_a_local_broker_takes_right_arguments() -> None:
    LocalBroker(
        3, port=9092, properties={"a.b": 1, "c": True, "d": 1.5}, racks=("a", "b"), version="4.2.0-rc1", heap="1G"
    )
    LocalBroker(secure=True, users={"me": "secret"}, start_timeout=1, progress=print)


def test_users_and_mechanisms_that_a_cluster_does_not_have(tmp_path: Path) -> None:
    secured = Secured(tmp_path, {"me": "secret"})
    assert secured.sasl_config("me", "PLAIN")["sasl.password"] == "secret"
    for user in ("you", None, 5, ["me"]):
        with pytest.raises(LocalBrokerError, match=r"there is no user .*: the users are me"):
            secured.sasl_config(user, "PLAIN")  # type: ignore[arg-type]
    for mechanism in ("GSSAPI", "plain", None, 5, []):
        with pytest.raises(LocalBrokerError, match="must be PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512"):
            secured.sasl_config("me", mechanism)  # type: ignore[arg-type]
