"""GSSAPI: Kerberos tickets, through the system's library and the `gssapi` package, an extra.

After the tickets are exchanged, the server offers layers of protection of which Kafka uses none (RFC 4752): the client
answers with that choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from .exchanges import Exchange, Rejected
from .settings import SecuritySettings, login_options

_NO_LAYER = 1


def kerberos_exchange(settings: SecuritySettings) -> Callable[[str], Exchange]:
    """Raises ConfigError without the package."""
    try:
        import gssapi
    except ImportError:
        raise ConfigError(
            "sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library: "
            "pip install 'headrace[kerberos]'. Other mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
        ) from None
    service = login_options(settings).get("serviceName") or settings.sasl_kerberos_service_name
    return lambda host: Kerberos(gssapi, f"{service}@{host}")


class Kerberos:
    """One login, with the tickets that the process has (kinit, or KRB5_CLIENT_KTNAME)."""

    def __init__(self, gssapi: Any, service: str) -> None:
        self._errors: type[Exception] = gssapi.exceptions.GSSError
        name = gssapi.Name(service, gssapi.NameType.hostbased_service)
        self._context = gssapi.SecurityContext(name=name, usage="initiate", mech=gssapi.MechType.kerberos)
        self._is_agreed = False

    def first(self) -> bytes:
        return self._step(None)

    def answer(self, challenge: bytes) -> bytes | None:
        if self._is_agreed:
            return None
        if not self._context.complete:
            return self._step(challenge)
        try:
            offered = self._context.unwrap(challenge).message
            if len(offered) != 4 or not offered[0] & _NO_LAYER:
                raise Rejected("the broker demands a layer of protection that Kafka does not have")
            self._is_agreed = True
            return bytes(self._context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message)
        except self._errors as error:
            raise Rejected(f"Kerberos: {error}") from None

    def _step(self, challenge: bytes | None) -> bytes:
        try:
            return self._context.step(challenge) or b""
        except self._errors as error:
            raise Rejected(f"Kerberos: {error}") from None
