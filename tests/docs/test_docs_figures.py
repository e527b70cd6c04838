"""The README has no figure that the page of benchmarks does not have."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    table = readme.split("## Comparison")[1].split("\n\n")[1]
    rates = re.findall(r"(\d+\.\d+) M/s", table)
    times = re.findall(r"(\d+\.\d+) ms", table)
    assert len(rates) == 7
    assert len(times) == 2
    first = page.split("\n## ")[1]
    assert [rate for rate in rates if f" {rate} M " not in first] == []
    latencies = page.split("## Latency of a single record")[1].split("\n## ")[0]
    assert [time for time in times if f" {time} " not in latencies] == []
