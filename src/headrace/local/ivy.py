"""Downloads files by their Maven coordinates, with the Ivy that PySpark includes. Ivy verifies their checksums.

The default repository is Maven Central. The environment variable `HEADRACE_IVY_SETTINGS` may name an Ivy settings file
with another repository. The usual proxy variables of the environment are passed to Java.
"""

from __future__ import annotations

import os
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from xml.sax.saxutils import quoteattr

from .errors import LocalBrokerError, full_disk
from .java import Java
from .process import GuardedProcess


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A module in a Maven repository. With an archive, such as `all.tar.gz` (classifier and extension), that file of
    the module, without its dependencies."""

    organisation: str
    name: str
    version: str
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of the one-time download. `total` is None while it is unknown."""

    step: str
    done: int
    total: int | None = None
    product: str = "Apache Kafka"


ProgressCallback = Callable[[DownloadProgress], None]

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="10000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" timeoutConstraint="patient"/>
    <ibiblio name="archives" m2compatible="true" usepoms="false" timeoutConstraint="patient"/>
  </resolvers>
  <!-- Archives have no dependencies. The parent of their POM is not in the repository. -->
  <modules><module organisation="io.apicurio" resolver="archives"/></modules>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="headrace" module="local-broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
{excludes}
  </dependencies>
</ivy-module>
"""
_UNREACHABLE = re.compile(
    r"Host \S+ not found|Server access error|UnknownHost|ConnectException|SocketTimeout|SSLException"
    r"|SSLHandshake|NoRouteToHost|Connection (?:refused|reset|timed out)|(?:Connect|Read) timed out",
    re.IGNORECASE,
)


def download(
    modules: Sequence[Coordinates],
    without: Sequence[tuple[str, str]],
    into: Path,
    scratch: Path,
    java: Java,
    progress: ProgressCallback,
    product: str = "Kafka",
) -> None:
    """Download the jars of `modules` and of their runtime dependencies, or their archives, to the directory `into`.

    Raises `LocalBrokerError` without PySpark or network, if the disk is full, or for an unknown version.
    """
    settings = Path(os.environ.get("HEADRACE_IVY_SETTINGS") or scratch / "ivysettings.xml")
    if settings.parent == scratch:
        settings.write_text(_SETTINGS)
    elif not settings.is_file():
        raise LocalBrokerError(f"HEADRACE_IVY_SETTINGS names {settings}, which does not exist")
    module = scratch / "ivy.xml"
    module.write_text(_module(modules, without))
    command = [
        java.executable,
        # Otherwise Ivy would create ~/.ivy2.
        f"-Divy.default.ivy.user.dir={scratch}",
        *proxy_flags(urllib.request.getproxies()),
        *("-cp", str(ivy_jar()), "org.apache.ivy.Main"),
        *("-settings", str(settings), "-cache", str(scratch / "ivy-cache"), "-ivy", str(module)),
        *("-types", "jar", "bundle", *(_extension(m.archive) for m in modules if m.archive)),
        *("-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as output:
        try:
            process = GuardedProcess(command, output=write_end)
        finally:
            os.close(write_end)
        try:
            said = _follow(output, progress)
            process.wait(30)
        finally:
            code = process.close()
    if code != 0:
        raise _failure(said, code, into, modules[0], product)


def ivy_jar() -> Path:
    """The jar of Ivy in PySpark. PySpark is not imported, because that is slow."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise LocalBrokerError(
        "the download needs Ivy, which PySpark includes, but PySpark is not installed: pip install 'headrace[local]'"
    )


def proxy_flags(proxies: dict[str, str]) -> list[str]:
    """The proxies of the environment, as Java's flags."""
    flags = []
    for scheme in ("http", "https"):
        if not (proxy := proxies.get(scheme)):
            continue
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.hostname:
            flags.append(f"-D{scheme}.proxyHost={parts.hostname}")
            flags.append(f"-D{scheme}.proxyPort={parts.port or 80}")
    if flags and (exempt := proxies.get("no")):
        hosts = (host.strip() for host in exempt.split(","))
        patterns = ("*" + host if host.startswith(".") else host for host in hosts if host)
        flags.append(f"-Dhttp.nonProxyHosts={'|'.join(patterns)}")
    return flags


def _module(modules: Sequence[Coordinates], without: Sequence[tuple[str, str]]) -> str:
    dependencies = "\n".join(map(_dependency, modules))
    excludes = (f"    <exclude org={quoteattr(org)} module={quoteattr(name)}/>" for org, name in without)
    return _MODULE.format(dependencies=dependencies, excludes="\n".join(excludes))


def _dependency(module: Coordinates) -> str:
    start = (
        f"    <dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)}"
        f' rev={quoteattr(module.version)} conf="default->default"'
    )
    if module.archive is None:
        return start + "/>"
    extension = quoteattr(_extension(module.archive))
    return (
        f'{start} transitive="false">\n      <artifact name={quoteattr(module.name)} type={extension} ext={extension}'
        f" m:classifier={quoteattr(module.archive.partition('.')[0])}/>\n    </dependency>"
    )


def _extension(archive: str) -> str:
    return archive.partition(".")[2]


def _follow(output: IO[bytes], progress: ProgressCallback) -> str:
    """Read Ivy's output to the end, and report the progress."""
    lines: list[str] = []
    found = fetched = 0
    for raw in output:
        line = raw.decode(errors="replace").strip()
        if not line or set(line) <= {"."}:
            continue
        lines.append(line)
        if line.startswith("found "):
            found += 1
            progress(DownloadProgress("resolving", found))
        elif line.startswith("[SUCCESSFUL ]"):
            fetched += 1
            progress(DownloadProgress("downloading", fetched, max(found, fetched)))
    return "\n".join(lines)


def _failure(said: str, code: int, into: Path, wanted: Coordinates, product: str = "Kafka") -> LocalBrokerError:
    if "No space left on device" in said:
        return full_disk(into, "the cache directory")
    if _UNREACHABLE.search(said):
        reason = next(line for line in said.splitlines() if _UNREACHABLE.search(line))
        return LocalBrokerError(
            f"{product} {wanted.version} is not in the cache and could not be downloaded: the Maven repository "
            f"cannot be reached ({reason}). Connect to the network (or set HTTPS_PROXY) and try again; "
            "later starts need no network"
        )
    if "UNRESOLVED DEPENDENCIES" in said:
        return LocalBrokerError(
            f"the Maven repository has no {wanted.organisation}:{wanted.name}:{wanted.version}: check the version"
        )
    tail = "\n".join(said.splitlines()[-15:])
    return LocalBrokerError(f"downloading {product} {wanted.version} failed (Ivy exited with code {code}):\n{tail}")
