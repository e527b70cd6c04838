"""Completion, as the scripts of shells ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def complete(words: str, **variables: str) -> list[str]:
    """What is offered for the last of the words."""
    found = words.split(" ")
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(found) - 1), "_HEADRACE_COMPLETE": "bash_complete", **variables}
    program = "from headrace.cli.app import run; run()"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | asked, capture_output=True, check=True)
    return done.stdout.decode().split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("headrace to", ["plain,topics"]),
        ("headrace groups re", ["plain,reset"]),
        ("headrace lag --thr", ["plain,--threshold"]),
        ("headrace tail --format ", ["plain,text", "plain,json", "plain,hex"]),
    ],
)
def test_commands_options_and_values_are_completed(words: str, expected: list[str]) -> None:
    assert complete(words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_scripts_exist(shell: str) -> None:
    program = "from headrace.cli.app import run; run()"
    variables = os.environ | {"_HEADRACE_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True)
    if shell == "bash" and b"4.4" in done.stderr:
        pytest.skip("the Bash of this machine is too old")
    assert (done.returncode, b"_HEADRACE_COMPLETE" in done.stdout) == (0, True)
