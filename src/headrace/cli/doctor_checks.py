"""What `headrace doctor` concludes from the facts that doctor_probes.py collects. No I/O.

    ok        usable
    note      usable, but worth knowing
    missing   not installed; only a problem if it was asked for
    broken    installed or configured, and unusable

The exit code is 1 if anything is broken. With the names of extras, it is 1 if anything that they need is broken or
missing; everything else is only shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CORE = "core"
OLDEST_PYTHON = (3, 11)
NEEDED_SPACE = 500 * 2**20
"""Bytes that Kafka, its class archive and the temporary files of the download take."""

State = Literal["ok", "note", "missing", "broken"]

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[\w\s,.-]+)\])?\s*\(?(?P<range>[^;()]*)\)?\s*(?:;(?P<condition>.*))?"
)
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that headrace needs, and the version that is installed."""

    name: str
    range: str
    installed: str | None
    extras: tuple[str, ...]
    """The extras of headrace that need it, or CORE."""


@dataclass(frozen=True, slots=True)
class WorkerPython:
    """The Python that PySpark starts for its workers."""

    source: str
    """The variable that chooses it, such as `PYSPARK_PYTHON`, or `python3 on the PATH`."""
    path: str
    version: str | None
    headrace: str | None
    has_pyarrow: bool = True
    error: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything about this machine that the checks use."""

    headrace: str
    python: tuple[int, int, int]
    executable: str
    platform: str
    kernel_error: str | None
    packages: tuple[Package, ...]
    extras: tuple[str, ...]
    java: str | None
    java_error: str = ""
    install_java: str = ""
    """The command that installs Java on this machine, if it is known."""
    worker: WorkerPython | None = None
    spark_home: str | None = None
    spark_home_version: str | None = None
    cache: str = ""
    cache_error: str = ""
    cache_space: int = 0
    kafka: str = ""
    has_kafka: bool = False
    cluster: str = "stopped"
    """`stopped`, `starting`, `running on …`, `crashed`, or why that is unknown."""
    missing_topics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What groups of the local cluster have subscribed and does not exist: sentences, by group."""
    ports: Mapping[int, bool] = field(default_factory=dict)
    """Whether each port is free."""


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    subject: str
    text: str
    fix: str = ""
    extras: tuple[str, ...] = ()


def diagnose(facts: Facts, asked: Collection[str] = ()) -> list[Finding]:
    """All findings, in the order in which they are shown. Advice names the extras that were asked for."""
    return [
        _python(facts),
        _kernel(facts),
        *(_installed(package) for package in facts.packages if package.installed is not None),
        *_missing(facts.packages, asked),
        *([] if facts.packages else [_metadata()]),
        _java(facts),
        *_workers(facts),
        *_spark_home(facts),
        *_local(facts),
    ]


def is_healthy(findings: Iterable[Finding], asked: Collection[str]) -> bool:
    """Whether the exit code is 0."""
    if not asked:
        return all(finding.state != "broken" for finding in findings)
    wanted = {CORE, *asked}
    return all(finding.state in ("ok", "note") for finding in findings if wanted.intersection(finding.extras))


def _python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    text = f"{version}, {facts.executable}, {facts.platform}"
    if facts.python[:2] < OLDEST_PYTHON:
        return Finding("broken", "Python", text, "install Python 3.11 or newer", (CORE,))
    return Finding("ok", "Python", text, extras=(CORE,))


def _kernel(facts: Facts) -> Finding:
    if facts.kernel_error is None:
        return Finding("ok", "native kernel", "loaded", extras=(CORE,))
    fix = f"{facts.executable} -m pip install --force-reinstall headrace"
    return Finding("broken", "native kernel", f"cannot be loaded: {facts.kernel_error}", fix, (CORE,))


def _installed(package: Package) -> Finding:
    assert package.installed is not None
    if not is_in_range(package.installed, package.range):
        fix = f"pip install '{package.name}{package.range}'"
        text = f"{package.installed}, but headrace needs {package.range}"
        return Finding("broken", package.name, text, fix, package.extras)
    return Finding("ok", package.name, package.installed, extras=package.extras)


def _missing(packages: Iterable[Package], asked: Collection[str]) -> Iterator[Finding]:
    """A finding for each extra that has to be installed: one that was asked for, else the smallest with the package."""
    size = Counter(extra for package in packages for extra in package.extras)
    missing: dict[str, list[Package]] = {}
    for package in packages:
        if package.installed is None:
            extra = min(package.extras, key=lambda extra: (extra not in asked, size[extra]))
            missing.setdefault(extra, []).append(package)
    for extra, group in missing.items():
        text = f"not installed: {', '.join(package.name for package in group)}"
        if extra == CORE:
            yield Finding("broken", "headrace", text, "pip install headrace", (CORE,))
        else:
            extras = {extra for package in group for extra in package.extras}
            yield Finding("missing", f"[{extra}]", text, f"pip install 'headrace[{extra}]'", tuple(sorted(extras)))


def _metadata() -> Finding:
    text = "the installed package has no metadata, so versions and extras cannot be checked"
    return Finding("broken", "headrace", text, "pip install headrace", (CORE,))


def _has(facts: Facts, name: str) -> bool:
    return any(package.name == name and package.installed for package in facts.packages)


def _java(facts: Facts) -> Finding:
    users = ("local", "demo", "spark", "spark-connect")
    if facts.java is not None:
        return Finding("ok", "Java", facts.java, extras=users)
    # PySpark is of no use without Java.
    state: State = "broken" if _has(facts, "pyspark") else "missing"
    return Finding(state, "Java", facts.java_error, facts.install_java, users)


def _workers(facts: Facts) -> Iterator[Finding]:
    if facts.worker is not None:
        yield worker_finding(facts.worker, facts.python, facts.executable, facts.headrace)


def worker_finding(worker: WorkerPython, python: tuple[int, int, int], executable: str, headrace: str) -> Finding:
    """PySpark requires the same minor version of Python in driver and workers, and workers need headrace and
    pyarrow, too. The other arguments describe this Python."""
    where = f"{worker.path} ({worker.source})"
    text = ""
    if worker.version is None:
        text = f"{where} does not run: {worker.error}"
    elif worker.version.split(".")[:2] != [str(part) for part in python[:2]]:
        text = f"{where} is Python {worker.version}, but this is {'.'.join(map(str, python))}"
    elif worker.headrace is None:
        text = f"{where} has no headrace"
    elif worker.headrace != headrace:
        text = f"{where} has headrace {worker.headrace}, but this is {headrace}"
    elif not worker.has_pyarrow:
        text = f"{where} has no pyarrow"
    subject, extras = "Spark workers", ("spark", "spark-connect")
    if not text:
        return Finding("ok", subject, f"{where}, Python {worker.version}", extras=extras)
    variable = worker.source if worker.source.startswith("PYSPARK") else "PYSPARK_PYTHON"
    return Finding("broken", subject, text, f"export {variable}={executable}", extras)


def _spark_home(facts: Facts) -> Iterator[Finding]:
    if facts.spark_home is not None:
        installed = next((package.installed for package in facts.packages if package.name == "pyspark"), None)
        yield spark_home_finding(facts.spark_home, facts.spark_home_version, installed)


def spark_home_finding(home: str, version: str | None, pyspark: str | None) -> Finding:
    """`version` is that of the Spark in `home`, if there is one."""
    subject, extras = "SPARK_HOME", ("spark", "spark-connect")
    if version is None:
        return Finding("broken", subject, f"{home} contains no Spark", "unset SPARK_HOME, or correct it", extras)
    if pyspark is not None and pyspark != version:
        text = f"{home} is Spark {version}, but PySpark is {pyspark}"
        fix = f"unset SPARK_HOME, or pip install pyspark=={version}"
        return Finding("broken", subject, text, fix, extras)
    return Finding("ok", subject, f"{home}, Spark {version}", extras=extras)


def _local(facts: Facts) -> Iterator[Finding]:
    extras = ("local", "demo")
    if facts.has_kafka:
        yield Finding("ok", "Apache Kafka", f"{facts.kafka} in {facts.cache}", extras=extras)
    elif facts.cache_error:
        text = f"the cache {facts.cache} cannot be written: {facts.cache_error}"
        yield Finding("broken", "Apache Kafka", text, "set HEADRACE_CACHE to a directory that you can write", extras)
    elif facts.cache_space < NEEDED_SPACE:
        text = f"{facts.cache} has {facts.cache_space // 2**20} MiB of space, but Kafka needs {NEEDED_SPACE // 2**20}"
        yield Finding("broken", "Apache Kafka", text, "free some, or set HEADRACE_CACHE to another directory", extras)
    else:
        text = f"{facts.kafka} is not in {facts.cache}: the first `headrace up` downloads it"
        yield Finding("note", "Apache Kafka", text, extras=extras)
    if facts.cluster.startswith(("running", "starting")):
        yield Finding("ok", "local cluster", facts.cluster, extras=extras)
        for group, found in facts.missing_topics.items():
            yield Finding("note", f"group {group}", ". ".join(found), f"headrace groups -g {group}", extras)
        return
    if facts.cluster != "stopped":
        yield Finding("broken", "local cluster", facts.cluster, "headrace down && headrace up", extras)
    for port, is_free in facts.ports.items():
        if is_free:
            yield Finding("ok", f"port {port}", "free", extras=extras)
        else:
            text = "another process listens there"
            yield Finding("note", f"port {port}", text, "headrace up --port 0 chooses a free port", extras)


# -- Requirements ------------------------------------------------------------------------------------------------------


def needed_packages(
    requires: Callable[[str], Iterable[str]], extras: Iterable[str], name: str = "headrace"
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The packages that `name` and its extras need: for each, its range and the extras. `requires` returns the
    requirements of a package as its metadata has them, or nothing if it is not installed."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for extra in (CORE, *extras):
        for package, span in _closure(requires, name, extra):
            known = found.get(package, (span, ()))
            if extra not in known[1]:
                found[package] = (known[0] or span, (*known[1], extra))
    return found


def _closure(requires: Callable[[str], Iterable[str]], name: str, extra: str) -> Iterator[tuple[str, str]]:
    """Follows the extras of packages (`headrace[cli]`, `pyspark[connect]`), but no requirements without extras: pip
    keeps those consistent."""
    for line in requires(name):
        match = _REQUIREMENT.fullmatch(line.strip())
        if match is None:
            continue
        asked = _OF_EXTRA.search(match["condition"] or "")
        if (asked[1] if asked else CORE) != extra:
            continue
        if match["name"] != name:
            yield match["name"].lower().replace("_", "-"), match["range"].strip()
        for other in filter(None, (part.strip() for part in (match["extras"] or "").split(","))):
            yield from _closure(requires, match["name"], other)


def is_in_range(version: str, span: str) -> bool:
    """Whether a version is in a range such as `>=4.2,<5`. Only `>=`, `<` and `==` occur; others are ignored."""
    for part in filter(None, (part.strip() for part in span.split(","))):
        match = re.fullmatch(r"(>=|<|==)\s*([\d.]+)", part)
        if match is None:
            continue
        here, there = _release(version), _release(match[2])
        length = max(len(here), len(there))
        here, there = here + (0,) * (length - len(here)), there + (0,) * (length - len(there))
        if not {">=": here >= there, "<": here < there, "==": here == there}[match[1]]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
