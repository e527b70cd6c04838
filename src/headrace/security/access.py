"""What a connection needs to get into a cluster: a TLS context, and what to say to log in."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable

from ..errors import ConfigError
from .exchanges import Exchange, OAuthBearer, Plain, check_extensions, extensions_in
from .kerberos import kerberos_exchange
from .scram import SaltedPasswords, Scram
from .settings import SecuritySettings, login_options
from .tls import TlsContexts, trust_of
from .tokens import Ask, TokenEndpoint, Tokens, from_callback, in_time

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# Of a broker's host name. Awaited, because a token or a ticket may have to be asked for.
Begin = Callable[[str], Awaitable[Exchange]]


class Access:
    """One for all connections of a client, so that they share tokens and what is slow to work out."""

    def __init__(self, settings: SecuritySettings) -> None:
        self.mechanism = settings.sasl_mechanism if settings.uses_sasl else None
        self._contexts = TlsContexts(settings) if settings.uses_tls else None
        self._begin = _login(settings) if settings.uses_sasl else None

    def check(self) -> None:
        """Raises ConfigError if certificates or keys cannot be used."""
        self.context()

    def context(self) -> ssl.SSLContext | None:
        """For a new connection; None without TLS. Raises ConfigError."""
        return None if self._contexts is None else self._contexts.current()

    async def exchange(self, host: str) -> Exchange:
        """For one login. Raises AuthenticationError or NetworkError if there is no token or ticket to be had."""
        assert self._begin is not None
        return await self._begin(host)


def _login(settings: SecuritySettings) -> Begin:
    mechanism = settings.sasl_mechanism
    if mechanism == "PLAIN":
        username, password = user_and_password(settings)
        return _at_once(lambda _: Plain(username, password))
    if mechanism in _HASHES:
        username, password = user_and_password(settings)
        salted = SaltedPasswords(_HASHES[mechanism], password)
        return _at_once(lambda _: Scram(username, salted, secrets.token_urlsafe(24)))
    if mechanism == "OAUTHBEARER":
        return _with_tokens(settings)
    return kerberos_exchange(settings)


def _at_once(make: Callable[[str], Exchange]) -> Begin:
    async def begin(host: str) -> Exchange:
        return make(host)

    return begin


def user_and_password(settings: SecuritySettings) -> tuple[str, str]:
    options = login_options(settings)
    username = settings.sasl_username or options.get("username")
    password = settings.sasl_password or options.get("password")
    for value, name in ((username, "username"), (password, "password")):
        if not value:
            raise ConfigError(
                f"sasl.{name} is missing (or {name} in sasl.jaas.config): {settings.sasl_mechanism} needs it"
            )
    assert username is not None
    assert password is not None
    if "\0" in username or "\0" in password:
        raise ConfigError("sasl.username and sasl.password cannot have a character NUL in them")
    return username, password


def _with_tokens(settings: SecuritySettings) -> Begin:
    tokens = Tokens(token_source(settings))

    async def begin(_: str) -> Exchange:
        token = await tokens.get()
        return OAuthBearer(token.value, token.extensions)

    return begin


def token_source(settings: SecuritySettings) -> Ask:
    try:
        extensions = extensions_in(settings.sasl_oauthbearer_extensions)
    except ValueError as error:
        raise ConfigError(f"sasl.oauthbearer.extensions: {error}") from None
    callback, url = settings.sasl_oauthbearer_token_callback, settings.sasl_oauthbearer_token_endpoint_url
    options = login_options(settings)
    of_login = {
        name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
    }
    try:
        check_extensions(of_login)
    except ValueError as error:
        raise ConfigError(f"sasl.jaas.config: {error}") from None
    extensions |= of_login
    if callback is not None and url is not None:
        raise ConfigError("sasl.oauthbearer.token.callback and …token.endpoint.url both give tokens: choose one")
    if callback is not None:
        return in_time(from_callback(callback, extensions))
    if url is None:
        raise ConfigError(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.callback, or sasl.oauthbearer.token.endpoint.url "
            "with the client's id and secret"
        )
    client_id = settings.sasl_oauthbearer_client_id or options.get("clientId")
    client_secret = settings.sasl_oauthbearer_client_secret or options.get("clientSecret")
    for value, name in ((client_id, "client.id"), (client_secret, "client.secret")):
        if not value:
            raise ConfigError(f"sasl.oauthbearer.{name} is missing: the token endpoint asks for it")
    assert client_id is not None
    assert client_secret is not None
    scope = settings.sasl_oauthbearer_scope or options.get("scope")
    urlencode = settings.sasl_oauthbearer_header_urlencode
    endpoint = TokenEndpoint(url, client_id, client_secret, scope, extensions, lambda: trust_of(settings), urlencode)
    return in_time(endpoint.ask)
