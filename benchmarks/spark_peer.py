"""Spark's own Kafka connector for comparisons: PySpark 4.2 in a virtual environment, and its jars, with from_avro.

    <cache>/spark-4.2.0-avro/venv        PySpark and headrace's dependencies; headrace itself comes from this checkout
    <cache>/spark-4.2.0-avro/jars        the connector and its dependencies that Spark does not ship
    <cache>/spark-4.2.0-avro/ready.json  the installed versions; written last
    <cache>/spark-4.2.0-avro.lock        held by the installing process

The jars are listed explicitly: the connector of 4.2.0 depends on a spark-token-provider-kafka of its own version, which
was never published, and works with that of 4.0.0. The newest published spark-avro is 4.1.1.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.local import LocalBrokerError
from headrace.local.filelock import FileLock
from headrace.local.ivy import ivy_jar, proxy_flags
from headrace.local.java import find_java
from headrace.local.paths import cache_dir

from .results import Figure, median_figure

VERSION = "4.2.0"
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-avro_2.13", "4.1.1"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
SOURCES = Path(__file__).parents[1] / "src"
_INSTALLED_WITHIN = 900.0
_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


class Unavailable(Exception):
    """The connector is not available here. The message has the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """PySpark 4.2 with both sources."""

    path: Path

    @property
    def python(self) -> str:
        return str(self.path / "venv" / "bin" / "python")

    @property
    def jars(self) -> str:
        """The value of `spark.jars`."""
        return ",".join(str(jar) for jar in sorted((self.path / "jars").iterdir()))

    @property
    def own_environment(self) -> dict[str, str]:
        """Environment variables for a process with this Python and the headrace of this checkout."""
        return {"PYTHONPATH": str(SOURCES), "PYSPARK_PYTHON": self.python, "SPARK_LOCAL_IP": "127.0.0.1"}

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "SPARK_HOME"} | self.own_environment

    def command(self, module: str, job: Mapping[str, Any]) -> list[str]:
        """Runs a module of this package, with the job as its argument."""
        own = [f"{name}={value}" for name, value in self.own_environment.items()]
        return ["env", "-u", "SPARK_HOME", *own, self.python, "-m", f"{__package__}.{module}", json.dumps(job)]


def session_figures(output: str, by: str, say: Callable[[str], None]) -> dict[str, dict[str, Figure]]:
    """The medians of the JSON lines `{"what", by, …}` of a session. Lines with `failed` have a reason instead."""
    runs: dict[str, dict[str, list[Figure]]] = {}
    for line in output.splitlines():
        if line.startswith('{"what"'):
            found = json.loads(line)
            what, name = found.pop("what"), found.pop(by)
            figure: Figure = found.get("failed", found)
            runs.setdefault(what, {}).setdefault(name, []).append(figure)
            say(f"{what}, {name}: {figure}")
    return {what: {name: median_figure(found) for name, found in names.items()} for what, names in runs.items()}


def prepare(say: Callable[[str], None]) -> Peer:
    """Install it once, which takes a minute or two. Raises Unavailable."""
    peer = Peer(cache_dir() / f"spark-{VERSION}-avro")
    wanted = {"packages": _requirements(), "jars": [":".join(jar) for jar in JARS]}
    if _installed(peer) == wanted:
        return peer
    try:
        peer.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(peer.path.with_name(peer.path.name + ".lock")) as lock:
            if not lock.acquire(_INSTALLED_WITHIN):
                raise Unavailable(f"another process has been installing it for {_INSTALLED_WITHIN:g} s")
            if _installed(peer) != wanted:
                began = time.monotonic()
                say(f"installing PySpark {VERSION} and its Kafka connector into {peer.path}, once")
                shutil.rmtree(peer.path, ignore_errors=True)
                _make_environment(peer)
                _fetch_jars(peer)
                (peer.path / "ready.json").write_text(json.dumps(wanted, indent=1))
                say(f"installed in {time.monotonic() - began:.0f} s")
    except (OSError, LocalBrokerError) as error:
        raise Unavailable(str(error)) from error
    return peer


def _requirements() -> list[str]:
    """The requirements of headrace, in the versions installed here."""
    return [f"pyspark=={VERSION}", *(f"{name}=={importlib.metadata.version(name)}" for name in ("kio", "pyarrow"))]


def _installed(peer: Peer) -> object:
    try:
        return json.loads((peer.path / "ready.json").read_bytes())
    except (OSError, ValueError):
        return None


def _make_environment(peer: Peer) -> None:
    _run([sys.executable, "-m", "venv", str(peer.path / "venv")])
    pip = [peer.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *_requirements()])


def _fetch_jars(peer: Peer) -> None:
    """Download the jars with PySpark's Ivy, without their dependencies."""
    scratch = peer.path / "scratch"
    scratch.mkdir()
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    if not settings:
        settings = str(scratch / "ivysettings.xml")
        Path(settings).write_text(_IVY_SETTINGS)
    dependencies = "\n".join(
        f'<dependency org="{organisation}" name="{name}" rev="{version}" transitive="false"/>'
        for organisation, name, version in JARS
    )
    module = scratch / "ivy.xml"
    module.write_text(
        f'<ivy-module version="2.0"><info organisation="headrace" module="peer"/>\n'
        f"<dependencies>{dependencies}</dependencies></ivy-module>\n"
    )
    _run(
        [
            find_java().executable,
            f"-Divy.default.ivy.user.dir={scratch}",
            *proxy_flags(urllib.request.getproxies()),
            *("-cp", str(ivy_jar()), "org.apache.ivy.Main", "-settings", settings),
            *("-cache", str(scratch / "cache"), "-ivy", str(module), "-types", "jar", "bundle"),
            *("-retrieve", f"{peer.path / 'jars'}/[artifact]-[revision].[ext]"),
        ]
    )
    if (found := len(list((peer.path / "jars").glob("*.jar")))) != len(JARS):
        raise Unavailable(f"{found} of the connector's {len(JARS)} jars were found")
    shutil.rmtree(scratch)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INSTALLED_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} did not finish in {_INSTALLED_WITHIN:g} s") from None
    if done.returncode != 0:
        raise Unavailable("\n".join(done.stdout.strip().splitlines()[-3:]))
