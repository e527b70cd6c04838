"""Collects the facts for `headrace doctor`. It needs nothing but the core of headrace."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .._version import __version__
from ..local.background import read_status
from ..local.errors import LocalBrokerError
from ..local.installation import installation_of
from ..local.java import find_java
from ..local.kafka_home import DEFAULT_VERSION, KafkaHome
from ..local.paths import cache_dir
from ..local.ports import is_free
from .doctor_checks import Facts, Package, WorkerPython, needed_packages
from .properties import parse_properties

_PORTS = (9092,)
_WORKER_WITHIN = 30.0
_CLUSTER_WITHIN = 5.0
_ASK_WORKER = """\
import importlib.util, json, platform
try:
    import headrace
    found = headrace.__version__
except Exception:
    found = None
print(json.dumps([platform.python_version(), found, importlib.util.find_spec("pyarrow") is not None]))
"""
# The programs that install packages, in the order in which they are looked for.
_INSTALL_JAVA = {
    "apt-get": "sudo apt-get install openjdk-17-jre-headless (or openjdk-21-jre-headless)",
    "dnf": "sudo dnf install java-21-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "brew": "brew install openjdk",
}


def collect_facts() -> Facts:
    extras = _extras()
    packages = _packages(extras)
    java, java_error = _java()
    has_spark = any(package.name == "pyspark" and package.installed for package in packages)
    spark_home = os.environ.get("SPARK_HOME") or None
    cache = cache_dir()
    cache_error, space = _writable(cache)
    return Facts(
        headrace=__version__,
        python=sys.version_info[:3],
        executable=sys.executable,
        platform=f"{platform.system()} {platform.machine()}",
        kernel_error=_kernel_error(),
        packages=packages,
        extras=extras,
        java=java,
        java_error=java_error,
        install_java=next((command for tool, command in _INSTALL_JAVA.items() if shutil.which(tool)), ""),
        worker=_worker() if has_spark else None,
        spark_home=spark_home,
        spark_home_version=None if spark_home is None else spark_version(Path(spark_home)),
        cache=str(cache),
        cache_error=cache_error,
        cache_space=space,
        kafka=DEFAULT_VERSION,
        has_kafka=KafkaHome(DEFAULT_VERSION, installation_of(f"kafka-{DEFAULT_VERSION}")).is_complete(),
        cluster=_cluster(),
        missing_topics=_missing_topics(),
        ports={port: is_free(port) for port in _PORTS},
    )


def _extras() -> tuple[str, ...]:
    try:
        return tuple(importlib.metadata.metadata("headrace").get_all("Provides-Extra") or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def _packages(extras: tuple[str, ...]) -> tuple[Package, ...]:
    # `all` only repeats the others.
    needed = needed_packages(_requires, (extra for extra in extras if extra != "all"))
    return tuple(Package(name, span, _version(name), users) for name, (span, users) in needed.items())


def _requires(name: str) -> Iterable[str]:
    try:
        return importlib.metadata.requires(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernel_error() -> str | None:
    try:
        importlib.import_module("headrace.records")
    except Exception as error:  # noqa: BLE001  # a damaged library can raise anything
        return f"{type(error).__name__}: {error}"
    return None


def _java() -> tuple[str | None, str]:
    try:
        java = find_java()
    except LocalBrokerError as error:
        return None, str(error)
    return f"{java.version}, {java.executable}", ""


def _worker() -> WorkerPython:
    """PySpark starts PYSPARK_PYTHON, or python3."""
    given = os.environ.get("PYSPARK_PYTHON")
    source, command = ("PYSPARK_PYTHON", given) if given else ("python3 on the PATH", "python3")
    return ask_python(source, shutil.which(command) or command)


def ask_python(source: str, path: str) -> WorkerPython:
    """What the interpreter at `path` has. Starts it."""
    try:
        done = subprocess.run(
            [path, "-c", _ASK_WORKER],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WORKER_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _unusable(source, path, f"it did not end within {_WORKER_WITHIN:g} s")
    except OSError as error:
        return _unusable(source, path, error.strerror or str(error))
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return _unusable(source, path, f"it exited with code {done.returncode} ({last})")
    try:
        version, headrace, has_pyarrow = json.loads(done.stdout)
    except (ValueError, TypeError):
        return _unusable(source, path, "its output is not that of Python")
    return WorkerPython(source, path, version, headrace, has_pyarrow)


def _unusable(source: str, path: str, error: str) -> WorkerPython:
    return WorkerPython(source, path, None, None, error=error)


def spark_version(home: Path) -> str | None:
    """The version of the Spark in a directory, by the name of its main jar."""
    for jar in sorted(home.glob("jars/spark-core_*.jar")):
        if match := re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name):
            return match[1]
    return None


def _writable(cache: Path) -> tuple[str, int]:
    """Why the directory, or the one in which it would be created, cannot be written; and its free space in bytes."""
    there = next(path for path in (cache, *cache.parents) if path.exists())
    error = ""
    if not there.is_dir():
        error = f"{there} is not a directory"
    elif not os.access(there, os.W_OK | os.X_OK):
        error = f"no permission to write {there}"
    return error, shutil.disk_usage(there).free


def _missing_topics() -> dict[str, list[str]]:
    """Of the groups of the local cluster, if it runs."""
    try:
        status = read_status()
        if status.state != "running" or not status.bootstrap_servers:
            return {}
        file = status.client_properties
        login = parse_properties(Path(file).read_text()) if file else {}
        from .missing_subscriptions import all_missing_subscriptions  # not importable without the native module

        return all_missing_subscriptions({**login, "bootstrap.servers": status.bootstrap_servers}, _CLUSTER_WITHIN)
    except Exception:  # noqa: BLE001  # another finding has the reason: a damaged library can raise anything
        return {}


def _cluster() -> str:
    try:
        status = read_status()
    except LocalBrokerError as error:
        return str(error)
    return f"{status.state} on {status.bootstrap_servers}" if status.state == "running" else status.state
