"""Every figure in the README is also on the benchmarks page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    table = readme.split("## Comparison")[1].split("\n\n")[1]
    written = next(line for line in table.splitlines() if line.startswith("| writing"))
    rates = re.findall(r"(\d+\.\d+) M/s", table.replace(written, ""))
    times = re.findall(r"(\d+\.\d+) ms", table)
    assert len(rates) == 7
    assert len(times) == 2
    first = page.split("\n## ")[1]
    assert [rate for rate in rates if f" {rate} M " not in first] == []
    writing = page.split("### Writing 3,000,000 records of 100 bytes, no compression, batches of 256 KiB")[1]
    rates = re.findall(r"(\d+\.\d+) M/s", written)
    assert len(rates) == 5
    assert [rate for rate in rates if f" {rate} M " not in writing.split("\n### ")[0]] == []
    latencies = page.split("## Latency of a single record")[1].split("\n## ")[0]
    assert [time for time in times if f" {time} " not in latencies] == []
