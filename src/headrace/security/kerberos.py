"""GSSAPI: Kerberos tickets, through the system's library and the `gssapi` package, an extra.

    ticket    for this broker: from the cache, or of the Kerberos server, which knows us by an earlier ticket (kinit) or
              by a key (keytab)
    proof     of the ticket; the broker answers with its own
    layer     the broker offers layers of protection of which Kafka uses none (RFC 4752), and the client takes that

The library asks the Kerberos server, and waits for it: on a thread, therefore. A server that cannot be reached is tried
again later; all else is final.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import AuthenticationError, ConfigError, NetworkError
from .exchanges import Exchange, Rejected, quoted
from .settings import SecuritySettings, kerberos_login
from .stores import read_file
from .tokens import on_a_thread

_NO_LAYER = 1
_TICKET_WITHIN = 30.0

# MIT's codes of errors, which are negative and come as unsigned numbers, and what to do about them.
_BASE = 2**32 - 1765328384
_UNREACHABLE = {_BASE + 29, _BASE + 154, _BASE + 156, _BASE + 220}  # busy, no server known or resolved, no answer
_MISSING = {_BASE + 141, _BASE + 181, _BASE + 195}  # no cache, no key, no file
_NO_TICKET = "run kinit, or name a keytab: sasl.kerberos.keytab, or KRB5_CLIENT_KTNAME in the environment"
_NO_KEY = "the keytab has no key of this user: klist -k tells whose it has"
_OLD_KEY = "the key in the keytab is not, or no longer, that of this user"
_CLOCKS = "the clocks of this machine and of the Kerberos server differ"
_ADVICE = {
    _BASE + 6: "the Kerberos server does not know this user: see sasl.kerberos.principal",
    _BASE + 7: "brokers have other names: see sasl.kerberos.service.name, and the host names that they advertise",
    _BASE + 24: _OLD_KEY,
    _BASE + 31: _OLD_KEY,
    _BASE + 32: "the ticket has expired: " + _NO_TICKET,
    _BASE + 37: _CLOCKS,
    _BASE + 148: _CLOCKS,
    _BASE + 154: "see [realms] in krb5.conf (KRB5_CONFIG), or DNS",
    _BASE + 224: "krb5.conf (KRB5_CONFIG) names no default_realm",
}


def kerberos_exchange(settings: SecuritySettings) -> Callable[[str], Awaitable[Exchange]]:
    """Raises ConfigError without the package, or without the keytab."""
    try:
        import gssapi
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigError(
            f"sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library{why}: "
            "pip install 'headrace[kerberos]'. Other mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
        ) from None
    login = kerberos_login(settings)
    store: dict[str, str] = {}
    if login.keytab is not None:
        keytab = os.path.expanduser(login.keytab.removeprefix("FILE:"))
        read_file(keytab, "sasl.kerberos.keytab")
        # One cache for all clients of this process that log in by it. The library asks again before a ticket ends.
        store = {"client_keytab": keytab, "ccache": f"MEMORY:headrace {login.principal or ''} {keytab}"}
    if login.ticket_cache is not None:
        store["ccache"] = login.ticket_cache

    async def begin(host: str) -> Exchange:
        try:
            async with asyncio.timeout(_TICKET_WITHIN):
                return await on_a_thread(lambda: Kerberos(gssapi, login.service, host, login.principal, store))
        except TimeoutError:
            raise NetworkError(f"there was no Kerberos ticket within {_TICKET_WITHIN:g} s") from None

    return begin


class Kerberos:
    """One login. Making one may take long: it gets the ticket.

    Raises AuthenticationError, or NetworkError if the Kerberos server cannot be reached.
    """

    secret = ""  # what a broker gets to see is good for nothing else

    def __init__(self, gssapi: Any, service: str, host: str, principal: str | None, store: dict[str, str]) -> None:
        self._errors: type[Exception] = gssapi.exceptions.GSSError
        self._is_agreed = False
        try:
            self._context = _context(gssapi, service, host, principal, store)
            self._first: bytes = self._context.step(None) or b""
        except self._errors as error:
            raise _no_ticket(error, f"{service}/{host}", "client_keytab" in store) from None
        except NotImplementedError as error:
            raise AuthenticationError(f"Kerberos: {error}", step="ticket") from None

    def first(self) -> bytes:
        return self._first

    def answer(self, challenge: bytes) -> bytes | None:
        if self._is_agreed:
            return None
        try:
            if not self._context.complete:
                return self._context.step(challenge) or b""
            offered = self._context.unwrap(challenge).message
            if len(offered) != 4 or not offered[0] & _NO_LAYER:
                raise Rejected("the broker demands a layer of protection that Kafka does not have")
            self._is_agreed = True
            return bytes(self._context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message)
        except self._errors as error:
            raise Rejected(f"the broker's answer is not that of the one the ticket is for: {_said(error)}") from None


def _context(gssapi: Any, service: str, host: str, principal: str | None, store: dict[str, str]) -> Any:
    kerberos, flags = gssapi.MechType.kerberos, gssapi.RequirementFlag
    user = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    return gssapi.SecurityContext(
        name=gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(name=user, usage="initiate", mechs=[kerberos], store=store or None),
        flags=[flags.mutual_authentication, flags.integrity],
        mech=kerberos,
        usage="initiate",
    )


def _no_ticket(error: Any, server: str, by_keytab: bool) -> AuthenticationError | NetworkError:
    missing = (_NO_KEY if by_keytab else _NO_TICKET) if error.min_code in _MISSING else None
    advice = missing or _ADVICE.get(error.min_code)
    text = f"there is no Kerberos ticket for {server}: {_said(error)}{'' if advice is None else f': {advice}'}"
    if error.min_code in _UNREACHABLE:
        return NetworkError(text)
    return AuthenticationError(text, step="ticket")


def _said(error: Any) -> str:
    """The mechanism's own words, if it has any: those of GSSAPI are the same for everything."""
    words = error.get_all_statuses(error.min_code, False) if error.min_code else []
    return quoted(" ".join(words or error.get_all_statuses(error.maj_code, True)))
