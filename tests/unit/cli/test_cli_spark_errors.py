"""Failures of `headrace run`, reported in one line."""

from __future__ import annotations

import pytest

from headrace.cli.spark_errors import Failures, cause_in, one_line

PYTHON = """Flow 'a' has FAILED.
Error: [STREAM_FAILED] Query [id = 4]: Failed when Python perform latestOffset: Traceback (most recent call last):
  File "b.py", line 2, in b
    raise KeyError
KeyError

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "c.py", line 9, in chosen
    raise OptionError(f"there is no topic {name}")
           ^^^^^^^^^^
headrace.spark.options.parsers.OptionError: there is no topic nosuch
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: a"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Flow a is RUNNING.", ""),
        ("", ""),
        ("Flow a has FAILED.\nError: [X] no such thing\nmore", "Flow a has FAILED: [X] no such thing"),
        ("Failed to resolve flow: 'a'.\nError: [Y] nowhere", "Failed to resolve flow: 'a': [Y] nowhere"),
        ("Run has FAILED.", "Run has FAILED."),
        (PYTHON, "Flow 'a' has FAILED: OptionError: there is no topic nosuch"),
    ],
)
def test_the_cause_of_a_failure(message: str, cause: str) -> None:
    assert cause_in(message) == cause


def test_the_last_failure_of_the_flow_that_failed_first() -> None:
    failures = Failures()
    assert failures.cause == ""
    for cause in (
        "",
        "Flow a has FAILED: a worker did not connect",
        "Flow b has FAILED: there is no a",
        "Flow a has FAILED more than 2 times: no broker",
        "Flow a has FAILED",
        "[X] the run failed",
    ):
        failures.add(cause)
    assert failures.cause == "Flow a has FAILED more than 2 times: no broker"


def test_what_an_exception_says() -> None:
    java = "An error occurred while calling None.X.\n: java.net.BindException: in use\n\tat java.base/x"
    assert one_line(RuntimeError(java)) == "java.net.BindException: in use"
    rpc = '<_InactiveRpcError of RPC that terminated with:\n\tstatus = X\n\tdetails = "No token"\n\tmore = "y"\n>'
    assert one_line(RuntimeError(rpc)) == "No token"
    assert one_line(KeyError()) == "KeyError"
