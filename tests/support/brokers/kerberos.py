"""A Kerberos server (Apache Kerby, from Maven Central) and a secured broker that accepts its users by GSSAPI.

Needs the package gssapi, whose build requires the headers of the system's Kerberos library, so it is not part of the
development dependencies. Without it, or without Kerby, the tests are skipped.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace import LocalBroker
from headrace.local.errors import LocalBrokerError
from headrace.local.ivy import Coordinates, download
from headrace.local.java import find_java
from headrace.local.paths import cache_dir
from support.brokers.admin import unique
from support.brokers.secured import SESSION, SecuredBroker

REALM = "HEADRACE.TEST"
_PRINCIPALS = ("kafka/127.0.0.1", "admin", "guest")
LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_KERBY = Coordinates("org.apache.kerby", "kerb-simplekdc", "2.1.0")
_SERVER = Path(__file__).parents[1] / "programs" / "Kdc.java"
_STARTS_WITHIN = 60.0
_SETTINGS = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  {more}
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""


@dataclass(frozen=True, slots=True)
class Kerberos:
    """A running server with the users `admin` and `guest`, and the broker as `kafka/127.0.0.1`."""

    directory: Path
    port: int

    def file(self, suffix: str, content: bytes | None = None) -> str:
        """The path of a new file, which is written if `content` is given."""
        path = self.directory / f"{unique('file')}{suffix}"
        if content is not None:
            path.write_bytes(content)
        return str(path)

    def settings(self, *more: str, port: int | None = None) -> str:
        """The path of a krb5.conf."""
        lines = "\n  ".join(more)
        return self.file(".conf", _SETTINGS.format(realm=REALM, port=port or self.port, more=lines).encode())

    def keytab(self, name: str) -> str:
        return str(self.directory / f"{_PRINCIPALS.index(name) + 1}.keytab")

    def environment(self, *more: str, port: int | None = None) -> dict[str, str]:
        """Environment variables of a process without ticket and key."""
        return {
            "KRB5_CONFIG": self.settings(*more, port=port),
            "KRB5CCNAME": f"FILE:{self.file('.ccache')}",
            "KRB5_CLIENT_KTNAME": self.file(".keytab"),
        }


@contextmanager
def kerberos_server(directory: Path) -> Iterator[Kerberos]:
    command = [find_java().executable, "-XX:TieredStopAtLevel=1", "-cp", f"{_jars()}/*", str(_SERVER)]
    with subprocess.Popen(
        [*command, REALM, str(directory), *_PRINCIPALS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], _STARTS_WITHIN)[0], "Kerby does not start"
            yield Kerberos(directory, int(process.stdout.readline()))
        finally:
            process.kill()


def _jars() -> Path:
    """The directory of Kerby's jars, downloaded once. It exists only when complete."""
    home = cache_dir() / f"kerby-{_KERBY.version}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            draft = Path(scratch, "jars")
            draft.mkdir()
            try:
                download([_KERBY], (), draft, Path(scratch), find_java(), lambda _: None)
            except LocalBrokerError as error:
                pytest.skip(f"cannot download the Kerberos server: {error}")
            draft.rename(home)
    return home


@contextmanager
def kerberized_broker(kerberos: Kerberos) -> Iterator[SecuredBroker]:
    login = f'keyTab="{kerberos.keytab("kafka/127.0.0.1")}" principal="kafka/127.0.0.1@{REALM}"'
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.secure.gssapi.connections.max.reauth.ms": int(SESSION * 1000),
        "listener.name.secure.gssapi.sasl.jaas.config": f"{LOGIN_MODULE} required isInitiator=false useKeyTab=true "
        f"storeKey=true {login};",
    }
    with pytest.MonkeyPatch.context() as patch:
        given = os.environ.get("JAVA_TOOL_OPTIONS", "")
        patch.setenv("JAVA_TOOL_OPTIONS", f"{given} -Djava.security.krb5.conf={kerberos.settings()}")
        broker = LocalBroker(secure=True, properties=properties).start()
    try:
        yield SecuredBroker(broker)
    finally:
        broker.stop()
