"""The reader in Go: found, built once, skipped with a reason, and compared with."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import contenders as who
from benchmarks import franz_go
from benchmarks.datasets import Dataset
from benchmarks.process import CommandFailed
from benchmarks.readers import Job, Reading
from benchmarks.report import Results, results
from benchmarks.results import Measurement, Outcome, Table, targets

JOB = Job("127.0.0.1:9092", "a-topic", 6, 1000)
PLAIN = Dataset(100, "none", 1_000_000)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `go` on the PATH that "builds" by writing its arguments, and a cache of the test's own."""
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    _script(program, 'if [ "$1" = env ]; then echo go1.99; else echo "$@" >> "$HOME/builds"; echo built > "$4"; fi')
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    franz_go.go_version.cache_clear()
    yield program
    franz_go.go_version.cache_clear()


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _measured(rate: float) -> Outcome:
    return Outcome((Measurement(1_000_000, 1_000_000 / rate, 0.5, 2.0, 10**8),))


def test_without_go_franz_go_is_skipped_with_a_reason(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(franz_go, "_INSTALLED", "/no/such/go")
    assert who.FRANZ_GO.missing == "skipped: Go is not installed (no `go` on the PATH)"
    with pytest.raises(CommandFailed, match="Go is not installed"):
        franz_go.build()


def test_the_report_names_the_reason_of_a_skipped_reader() -> None:
    outcomes = {who.COLUMNAR.name: _measured(2e6), who.FRANZ_GO.name: Outcome(skipped="skipped: Go is not installed")}
    text = results(Results({}, 0.0, "", 1, [Table(PLAIN, 0, outcomes)], {}, {}))
    assert "- franz-go was skipped: Go is not installed" in text
    assert re.search(r"\| franz-go +\| +skipped \|", text)
    assert "? columnar, × franz-go: not measured (at least 3.5)" in text


def test_targets_compare_with_the_faster_row_of_franz_go() -> None:
    rates = {who.COLUMNAR: 7e6, who.BY_RECORD: 3.6e6, who.FRANZ_GO: 1e6, who.FRANZ_GO_TUNED: 2e6}
    table = Table(PLAIN, 0, {contender.name: _measured(rate) for contender, rate in rates.items()})
    found = {target.text: target for target in targets(table)}
    assert found["columnar, × franz-go"].reached == pytest.approx(3.5)
    assert found["columnar, × franz-go"].met
    assert found["by record, × franz-go"].reached == pytest.approx(1.8)


def test_the_program_is_built_once(go: Path, tmp_path: Path) -> None:
    built = franz_go.build()
    built.chmod(0o755)
    assert franz_go.build() == built == franz_go.binary()
    assert built.is_relative_to(tmp_path / "cache")
    assert (tmp_path / "builds").read_text().count("build -trimpath") == 1
    assert [file.name for file in built.parent.iterdir()] == [built.name]


def test_another_source_or_go_builds_another_program(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = franz_go.binary()
    _script(go, "echo go2.0")
    franz_go.go_version.cache_clear()
    second = franz_go.binary()
    copy = tmp_path / "go"
    copy.mkdir()
    (copy / "main.go").write_text("package main")
    monkeypatch.setattr(franz_go, "SOURCE", copy)
    assert len({first, second, franz_go.binary()}) == 3


def test_a_failed_build_raises_what_go_said_and_leaves_nothing(go: Path, tmp_path: Path) -> None:
    _script(go, 'echo half > "$4"; echo "main.go:3: no such module" >&2; exit 1')
    with pytest.raises(CommandFailed, match=r"failed: main\.go:3: no such module"):
        franz_go.build()
    assert list((tmp_path / "cache" / "benchmarks").iterdir()) == []


@pytest.mark.parametrize("contender", who.FRANZ_GOS, ids=lambda contender: contender.name)
def test_the_command_of_franz_go_has_the_job(contender: who.Contender) -> None:
    program, job, *flags = contender.command(JOB)
    assert program == str(franz_go.binary())
    assert Job(**json.loads(job)) == JOB
    assert flags == (["tuned"] if contender is who.FRANZ_GO_TUNED else [])


def test_what_franz_go_prints_is_a_reading() -> None:
    output = '{"records":1000,"bytes":100000,"seconds":0.5,"cpu_seconds":0.75}\n'
    assert who.FRANZ_GO.parse(output) == Reading(1000, 100_000, 0.5, 0.75)


def test_go_modules_are_pinned_with_their_hashes() -> None:
    required = re.findall(r"^\t(\S+) (v\S+)", (franz_go.SOURCE / "go.mod").read_text(), re.MULTILINE)
    hashes = (franz_go.SOURCE / "go.sum").read_text()
    assert (franz_go.MODULE, f"v{franz_go.version()}") in required
    assert [name for name, version in required if f"{name} {version} h1:" not in hashes] == []
    with pytest.raises(ValueError, match="does not require"):
        franz_go.required_version("module x\n")
