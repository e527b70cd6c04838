"""Prometheus text, read by Prometheus' own parser, and the rules that `promtool check metrics` checks."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)$")


class Series(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def series(text: str, name: str) -> list[Series]:
    """The series with this name."""
    return [
        Series(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def check_format(text: str) -> None:
    assert text.endswith("\n")
    documented: list[str] = []
    typed: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help_text = line.removeprefix("# HELP ").partition(" ")
            assert name not in documented, f"two HELP lines of {name}"
            assert help_text.endswith("."), line
            documented.append(name)
            current = name
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split()
            assert (name, name in typed) == (current, False), line
            typed[name] = kind
        else:
            found = _SAMPLE.match(line)
            assert found is not None, line
            name, labels, value = found.groups()
            assert name == current, f"{line} is not with its family"
            assert (name, labels or "") not in seen, f"twice: {line}"
            seen.add((name, labels or ""))
            assert math.isfinite(float(value)), line
    assert documented == list(typed)
    for name, kind in typed.items():
        assert kind in ("gauge", "counter"), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert re.fullmatch(r"(kafka|headrace)_[a-z0-9_]+", name), name
        assert not name.endswith(("_milliseconds", "_ms", "_minutes", "_count", "_bucket", "_info_total")), name
    parsed = sum(len(family.samples) for family in text_string_to_metric_families(text))
    assert parsed == len(seen)
