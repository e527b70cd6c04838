"""Extracts the cause of a failure, in one line, from Spark's messages."""

from __future__ import annotations

import re

_NOT_RAISED = ("Traceback", "The above exception", "During handling")
_END_OF_TRACE = ("SQLSTATE:", "===")


def cause_in(message: str) -> str:
    """The cause of the failure that a message of the pipeline reports; empty if it reports none."""
    head, *lines = message.splitlines() or [""]
    if not head.startswith("Failed ") and " FAILED" not in head:
        return ""
    at = next((number for number, line in enumerate(lines) if line.startswith("Error: ")), None)
    if at is None:
        return head
    return f"{head.rstrip('.')}: {raised_in(lines[at:]) or lines[at].removeprefix('Error: ')}"


def raised_in(lines: list[str]) -> str:
    """The exception at the end of the Python traceback that starts in the first line; empty if there is none."""
    if not lines[0].endswith("Traceback (most recent call last):"):
        return ""
    raised = ""
    for line in lines[1:]:
        if line.lstrip().startswith(_END_OF_TRACE):
            break
        if line and not line[0].isspace() and not line.startswith(_NOT_RAISED):
            raised = line
    return re.sub(r"^(\w+\.)+(?=\w+: )", "", raised)


class Failures:
    """The failures of the flows of a run. Spark restarts a failed flow, so the cause is the last failure of the flow
    that failed first: the others may have failed because of it."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}

    def add(self, cause: str) -> None:
        if cause:
            flow = cause.partition(" has FAILED")[0]
            if ": " in cause or flow not in self._causes:
                self._causes[flow] = cause

    @property
    def cause(self) -> str:
        return next(iter(self._causes.values()), "")


def one_line(error: BaseException) -> str:
    """The first informative line of an error, without the call site and the stack."""
    if of_rpc := re.search(r'^\s*details = "(.+)"$', str(error), re.MULTILINE):
        return of_rpc[1]
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    informative = (it for it in lines if not it.startswith(("An error occurred while calling", "Traceback", "at ")))
    return next(informative, type(error).__name__)
