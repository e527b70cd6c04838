"""Finds the Java that runs the broker: `JAVA_HOME` if it is set, else the `java` on the PATH; 17 or newer."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from .errors import LocalBrokerError

OLDEST_JAVA = 17
_INSTALL = f"install Java {OLDEST_JAVA} or newer (a JRE is enough) and put it on the PATH or set JAVA_HOME to it"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run the broker."""

    executable: str
    version: str
    """As Java prints it: `17.0.15`, `21-ea`."""
    build: str
    """The output of `java -version`, which distinguishes builds of the same version."""


def find_java() -> Java:
    """The Java to use. Raises `LocalBrokerError` if there is none, or if it is too old."""
    executable = _locate()
    java = _inspect(executable, os.stat(executable).st_mtime_ns)
    if (major := major_version(java.version)) < OLDEST_JAVA:
        raise LocalBrokerError(
            f"Kafka needs Java {OLDEST_JAVA} or newer, but {executable} is Java {major} ({java.version}): {_INSTALL}"
        )
    return java


def major_version(version: str) -> int:
    """17 of `17.0.15`, 21 of `21-ea`, 8 of `1.8.0_362`."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None:
        raise LocalBrokerError(f"{version!r} is not a known version of Java: {_INSTALL}")
    return int(match.group(1))


def _locate() -> str:
    if home := os.environ.get("JAVA_HOME"):
        executable = os.path.join(home, "bin", "java")
        if not (os.path.isfile(executable) and os.access(executable, os.X_OK)):
            raise LocalBrokerError(
                f"JAVA_HOME is {home}, but there is no {executable}: correct or unset it, or {_INSTALL}"
            )
        return executable
    found = shutil.which("java")
    if found is None:
        raise LocalBrokerError(f"no Java found (no `java` on the PATH, no JAVA_HOME): {_INSTALL}")
    return found


@functools.lru_cache(maxsize=8)
def _inspect(executable: str, _changed: int) -> Java:
    try:
        done = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalBrokerError(f"{executable} does not run ({error}): {_INSTALL}") from error
    match = re.search(r'version "([^"]+)"', done.stdout)
    if done.returncode != 0 or match is None:
        # On macOS, /usr/bin/java may be a stub that only prints where to get Java.
        said = " ".join(done.stdout.split()) or f"exit code {done.returncode}"
        raise LocalBrokerError(f"{executable} is not a working Java ({said}): {_INSTALL}")
    return Java(executable, match.group(1), done.stdout.strip())
