"""`headrace doctor` as text. It works without click, because a missing click is one of the things that it reports."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence

from ..errors import ConfigError
from .doctor_checks import CORE, Facts, Finding, diagnose, is_healthy
from .doctor_probes import collect_facts
from .pipes import PipeClosed, detect_closed_pipe, discard_output

USAGE = """\
Usage: headrace doctor [EXTRA]...

  Show what is installed, what is missing, and the commands that fix it.

  Exit code 1 if something is broken. With the names of extras, such as `local`
  or `spark`, exit code 1 if something that they need is broken or missing.
"""


def run_plain(arguments: Sequence[str]) -> int:
    """The command without click. Returns the exit code."""
    if {"-h", "--help"}.intersection(arguments):
        print(USAGE, end="")
        return 0
    try:
        text, code = examine(arguments)
    except ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    try:
        with detect_closed_pipe():
            print(text, flush=True)
    except PipeClosed:
        discard_output()
        return 0
    return code


def examine(asked: Collection[str]) -> tuple[str, int]:
    """The report, and the exit code. Raises ConfigError for an unknown extra."""
    return report(collect_facts(), asked)


def report(facts: Facts, asked: Collection[str]) -> tuple[str, int]:
    if unknown := sorted({*asked} - {CORE, *facts.extras}):
        known = ", ".join(facts.extras) or "none: the installed package has no metadata"
        raise ConfigError(f"headrace has no extra {unknown[0]!r}. Its extras are {known}")
    wanted = {extra for extra in facts.extras if extra != "all"} if "all" in asked else {*asked}
    findings = diagnose(facts, wanted)
    code = 0 if is_healthy(findings, wanted) else 1
    return "\n".join((f"headrace {facts.headrace}", "", *_lines(findings), "", _summary(findings, wanted, code))), code


def _lines(findings: list[Finding]) -> Iterator[str]:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        yield f"{finding.state:<8} {finding.subject:<{width}} {finding.text}"
        if finding.fix:
            yield f"{'':<8} {'':<{width}} → {finding.fix}"


def _summary(findings: list[Finding], asked: Collection[str], code: int) -> str:
    if code == 0:
        return f"Ready: {', '.join(sorted(asked))}." if asked else "Nothing is broken."
    bad = [finding.subject for finding in findings if not is_healthy([finding], asked)]
    return f"Not usable: {', '.join(bad)}."
