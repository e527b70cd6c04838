"""The SASL mechanisms, and what the settings say about them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from ..errors import ConfigError
from .exchanges import Exchange, OAuthBearer, Plain, check_extensions, extensions_in
from .kerberos import kerberos_exchange
from .msk_iam import msk_exchange
from .scram import SaltedPasswords, Scram
from .settings import SecuritySettings, login_options
from .tls import trust_of
from .tokens import Ask, Tokens, from_callback, with_timeout

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# Called with a broker's host name. A coroutine, because it may have to fetch a token or a ticket.
Begin = Callable[[str], Awaitable[Exchange]]


def login(settings: SecuritySettings) -> Begin:
    """What begins each login. Raises ConfigError."""
    mechanism = settings.sasl_mechanism
    if mechanism == "PLAIN":
        username, password = user_and_password(settings)
        return _without_waiting(lambda _: Plain(username, password))
    if mechanism in _HASHES:
        username, password = user_and_password(settings)
        salted = SaltedPasswords(_HASHES[mechanism], password)
        return _without_waiting(lambda _: Scram(username, salted, secrets.token_urlsafe(24)))
    if mechanism == "OAUTHBEARER":
        return _with_tokens(settings)
    if mechanism == "AWS_MSK_IAM":
        return msk_exchange(settings)
    return kerberos_exchange(settings)


def _without_waiting(make: Callable[[str], Exchange]) -> Begin:
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
        raise ConfigError("sasl.username and sasl.password must not contain NUL characters")
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
        raise ConfigError("sasl.oauthbearer.token.callback and …token.endpoint.url are both set: set only one of them")
    if callback is not None:
        return with_timeout(from_callback(callback, extensions))
    if url is None:
        raise ConfigError(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.callback, or sasl.oauthbearer.token.endpoint.url "
            "with a client id and secret"
        )
    client_id = settings.sasl_oauthbearer_client_id or options.get("clientId")
    client_secret = settings.sasl_oauthbearer_client_secret or options.get("clientSecret")
    for value, name in ((client_id, "client.id"), (client_secret, "client.secret")):
        if not value:
            raise ConfigError(f"sasl.oauthbearer.{name} is missing: the token endpoint requires it")
    assert client_id is not None
    assert client_secret is not None
    from .token_endpoint import TokenEndpoint  # imports urllib, which others do not need

    scope = settings.sasl_oauthbearer_scope or options.get("scope")
    urlencode = settings.sasl_oauthbearer_header_urlencode
    endpoint = TokenEndpoint(url, client_id, client_secret, scope, extensions, lambda: trust_of(settings), urlencode)
    return with_timeout(endpoint.ask)
