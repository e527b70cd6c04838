"""A real registry behind TLS and a login: a proxy that forwards requests with the right Authorization."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.local.certificates import Authority
from support.formats.scripted_server import Request, ScriptedServer, response, scripted_server


@dataclass(frozen=True)
class GuardedRegistry:
    url: str
    ca_file: str
    server: ScriptedServer


@contextmanager
def guarded_registry(registry: str, authorization: str, where: Path) -> Iterator[GuardedRegistry]:
    """`authorization` is the header that requests must have. `where` gets the files of TLS."""
    parts = urlsplit(registry)

    def script(request: Request) -> bytes:
        if request.headers.get("authorization") != authorization:
            return response({"error_code": 401, "message": f"no: {request.headers.get('authorization')}"}, 401)
        forwarded = urllib.request.Request(
            f"{parts.scheme}://{parts.netloc}{request.target}",
            request.body or None,
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method=request.method,
        )
        try:
            with urllib.request.urlopen(forwarded, timeout=60) as found:
                return response(raw=found.read(), status=found.status)
        except urllib.error.HTTPError as error:
            return response(raw=error.read(), status=error.code)

    authority = Authority()
    signed = authority.issue("registry", ["127.0.0.1"])
    (where / "registry.pem").write_text(signed.key + signed.certificates)
    (where / "ca.pem").write_text(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(where / "registry.pem")
    with scripted_server(script, context) as server:
        yield GuardedRegistry(f"{server.url}{parts.path}", str(where / "ca.pem"), server)
