"""GSSAPI: Kerberos tickets, through the system's Kerberos library and the package `gssapi`, which is an extra.

    ticket    get a ticket for this broker from the cache, or from the Kerberos server, which authenticates the client
              by an earlier ticket (kinit) or by a key (keytab)
    proof     send a proof of the ticket; the broker answers with its own proof
    layer     the broker offers security layers (RFC 4752); Kafka uses none of them, so the client selects "none"

The library blocks while it waits for the Kerberos server, so it runs on a thread. If the server cannot be reached, the
login is retried later; all other errors are final.
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
from .tokens import run_in_thread

_NO_LAYER = 1
_TICKET_WITHIN = 30.0

# MIT's error codes, which are negative and arrive as unsigned numbers, with advice for the user.
_BASE = 2**32 - 1765328384
_UNREACHABLE = {_BASE + 29, _BASE + 154, _BASE + 156, _BASE + 220}  # busy, no server known or resolved, no response
_MISSING = {_BASE + 141, _BASE + 181, _BASE + 195}  # no cache, no key, no file
_NO_TICKET = "run kinit, or set a keytab with sasl.kerberos.keytab or the environment variable KRB5_CLIENT_KTNAME"
_NO_KEY = "the keytab has no key for this user: list its keys with klist -k"
_OLD_KEY = "the key in the keytab is wrong or outdated for this user"
_CLOCKS = "the clocks of this machine and of the Kerberos server differ"
_ADVICE = {
    _BASE + 6: "the Kerberos server does not know this user: see sasl.kerberos.principal",
    _BASE + 7: "the broker has another name: see sasl.kerberos.service.name, and the host names that brokers advertise",
    _BASE + 24: _OLD_KEY,
    _BASE + 31: _OLD_KEY,
    _BASE + 32: "the ticket has expired: " + _NO_TICKET,
    _BASE + 37: _CLOCKS,
    _BASE + 148: _CLOCKS,
    _BASE + 154: "see [realms] in krb5.conf (KRB5_CONFIG), or DNS",
    _BASE + 224: "krb5.conf (KRB5_CONFIG) names no default_realm",
}


def kerberos_exchange(settings: SecuritySettings) -> Callable[[str], Awaitable[Exchange]]:
    """Raises ConfigError if the package is not installed, or the keytab cannot be read."""
    try:
        import gssapi
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigError(
            f"sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library{why}: "
            "pip install 'headrace[kerberos]'. Other mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER"
        ) from None
    login = kerberos_login(settings)
    store: dict[str, str] = {}
    if login.keytab is not None:
        keytab = os.path.expanduser(login.keytab.removeprefix("FILE:"))
        read_file(keytab, "sasl.kerberos.keytab")
        # One ticket cache for all clients in this process with the same keytab. The library renews a ticket before it
        # expires.
        store = {"client_keytab": keytab, "ccache": f"MEMORY:headrace {login.principal or ''} {keytab}"}
    if login.ticket_cache is not None:
        store["ccache"] = login.ticket_cache

    async def begin(host: str) -> Exchange:
        try:
            async with asyncio.timeout(_TICKET_WITHIN):
                return await run_in_thread(lambda: Kerberos(gssapi, login.service, host, login.principal, store))
        except TimeoutError:
            raise NetworkError(f"the Kerberos server issued no ticket within {_TICKET_WITHIN:g} s") from None

    return begin


class Kerberos:
    """One login. Creating one may block for long, because it fetches the ticket.

    Raises AuthenticationError, or NetworkError if the Kerberos server cannot be reached.
    """

    secret = ""  # the messages to a broker are of no use to anyone else

    def __init__(self, gssapi: Any, service: str, host: str, principal: str | None, store: dict[str, str]) -> None:
        self._errors: type[Exception] = gssapi.exceptions.GSSError
        self._is_agreed = False
        try:
            self._context = _context(gssapi, service, host, principal, store)
            self._first: bytes = self._context.step(None) or b""
        except self._errors as error:
            raise _ticket_error(error, f"{service}/{host}", "client_keytab" in store) from None
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
                raise Rejected("the broker requires a security layer, which Kafka does not support")
            self._is_agreed = True
            return bytes(self._context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message)
        except self._errors as error:
            raise Rejected(f"the broker did not prove that the ticket is meant for it: {_reason(error)}") from None


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


def _ticket_error(error: Any, server: str, by_keytab: bool) -> AuthenticationError | NetworkError:
    missing = (_NO_KEY if by_keytab else _NO_TICKET) if error.min_code in _MISSING else None
    advice = missing or _ADVICE.get(error.min_code)
    text = f"cannot get a Kerberos ticket for {server}: {_reason(error)}{'' if advice is None else f': {advice}'}"
    if error.min_code in _UNREACHABLE:
        return NetworkError(text)
    return AuthenticationError(text, step="ticket")


def _reason(error: Any) -> str:
    """The message of Kerberos, if there is one. GSSAPI's own message is the same for all errors."""
    words = error.get_all_statuses(error.min_code, False) if error.min_code else []
    return quoted(" ".join(words or error.get_all_statuses(error.maj_code, True)))
