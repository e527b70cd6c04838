"""Which Java is used, and the errors if there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.local.errors import LocalBrokerError
from headrace.local.java import find_java, major_version

NOISE = "Picked up JAVA_TOOL_OPTIONS: -Dsome=thing"


def make_java(home: Path, *lines: str, code: int = 0) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    said = "\n".join(lines)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("17", 17), ("21-ea", 21), ("1.8.0_362", 8), ("11.0.2", 11), ("25.0.1+8", 25)],
)
def test_the_major_version_is_read_from_java_s_output(version: str, major: int) -> None:
    assert major_version(version) == major


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = make_java(tmp_path / "home", NOISE, 'openjdk version "21.0.2" 2024-01-16', "more")
    make_java(tmp_path / "other", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'other' / 'bin'}:{os.environ['PATH']}")
    java = find_java()
    assert java.executable == str(wanted)
    assert java.version == "21.0.2"


def test_java_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = make_java(tmp_path, 'java version "17.0.9" 2023-10-17 LTS')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{wanted.parent}:{os.environ['PATH']}")
    assert find_java().executable == str(wanted)


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalBrokerError, match=r"no Java found.*install Java 17 or newer"):
        find_java()


def test_a_java_home_without_a_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalBrokerError, match=r"JAVA_HOME is .* but there is no .*bin/java"):
        find_java()


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_362", "16.0.2"])
def test_a_java_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    make_java(tmp_path, f'openjdk version "{version}"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalBrokerError, match=r"needs Java 17 or newer, but .* is Java"):
        find_java()


def test_a_java_that_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path, "The operation couldn't be completed. Unable to locate a Java Runtime.", code=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalBrokerError, match=r"not a working Java .*Unable to locate a Java Runtime"):
        find_java()
