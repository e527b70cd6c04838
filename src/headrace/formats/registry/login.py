"""The login at a registry: credentials, further headers, TLS. Keeps secrets out of every message.

Secrets are the password, the token and the values of further headers. They are sent only to the origins (scheme, host,
port) of the configured URLs.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from ...errors import ConfigError

Token = str | Callable[[], str]

_SHORTEST_SECRET = 3  # a shorter one would hide parts of ordinary words
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection goes. Credentials are sent to trusted origins only."""

    scheme: str
    host: str
    port: int
    trusted: bool = True

    @classmethod
    def of(cls, parts: SplitResult, trusted: bool = True) -> Origin:
        """Raises ValueError."""
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError("not a URL of a host")
        parts.hostname.encode("idna")  # UnicodeError, a ValueError, for a name that no resolver accepts
        return cls(parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], trusted)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One URL of a registry, without user and password."""

    origin: Origin
    path: str
    user: tuple[str, str] | None = field(default=None, repr=False)
    """The user and the password that were in the URL."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        try:
            parts = urlsplit(url.strip())
            origin = Origin.of(parts)
            if "@" in parts.path:
                raise ValueError("a user or password with a slash")
        except ValueError:
            # The reason may contain a part of the password.
            raise ConfigError(
                f"{without_userinfo(url)!r} is not a valid URL of a schema registry: it must look like "
                "http://host:port/path; special characters in a user or password must be percent-encoded"
            ) from None
        if parts.query or parts.fragment:
            raise ConfigError(
                f"the URL of the schema registry at {origin} must not have a query or a fragment: use headers"
            )
        user = None
        if parts.username is not None or parts.password is not None:
            user = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(origin, parts.path.rstrip("/"), user)

    @property
    def apicurio_path(self) -> str:
        """The path of Apicurio's own API, beside its Confluent-compatible one."""
        return self.path.partition("/apis/")[0] + "/apis/registry/v3"

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"


def without_userinfo(url: str) -> str:
    """The URL as it may be shown, whether it is valid or not."""
    before, at, rest = url.strip().rpartition("@")
    scheme = re.match(r"https?://", before)
    return (scheme[0] if at and scheme else "") + re.split("[?#]", rest, maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """The credentials that are sent to a registry. `repr()` shows no secret."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: Token | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("username", self.username), ("password", self.password)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a string, not a {type(value).__name__}")
        if (self.username is None) != (self.password is None):
            raise ConfigError("a login at a schema registry needs both username and password")
        if self.username is not None and self.token is not None:
            raise ConfigError("a login at a schema registry is either username and password, or a token")
        if self.username is not None and ":" in self.username:
            raise ConfigError("a username must not contain ':' (HTTP Basic authentication)")
        if isinstance(self.token, str):
            _check_token(self.token)
        elif self.token is not None and not callable(self.token):
            raise TypeError(f"token must be a string or a function, not a {type(self.token).__name__}")
        if not isinstance(self.headers, Mapping):
            raise TypeError(f"headers must be a mapping of names to values, not a {type(self.headers).__name__}")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError("the names and the values of headers must be strings")
            if not _HEADER_NAME.fullmatch(name):
                raise ConfigError(f"{name!r} is not a valid name of an HTTP header")
            if not _HEADER_VALUE.fullmatch(value):
                raise ConfigError(f"the value of the header {name} has characters that HTTP does not allow")
            if name.lower() == "authorization" and (self.username is not None or self.token is not None):
                raise ConfigError("the header Authorization cannot be combined with username, password or token")

    @property
    def kind(self) -> str:
        if self.username is not None:
            return "basic"
        return "none" if self.token is None else "token"

    def request_headers(self) -> dict[str, str]:
        if self.username is not None:
            pair = f"{self.username}:{self.password}".encode()
            return {**self.headers, "Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        if self.token is not None:
            token = self.token if isinstance(self.token, str) else _check_token(self.token())
            return {**self.headers, "Authorization": f"Bearer {token}"}
        return dict(self.headers)

    def redact(self, text: str, sent: Mapping[str, str]) -> str:
        """The text of a server without our secrets: a server may repeat the headers that it received."""
        for secret in sorted(set(self._secrets(sent)), key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "…")
        return text

    def _secrets(self, sent: Mapping[str, str]) -> Iterator[str]:
        if self.password:
            yield self.password
        yield from self.headers.values()
        if authorization := sent.get("Authorization"):
            yield authorization
            yield authorization.partition(" ")[2]


def _check_token(token: object) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        # Do not show it.
        raise ConfigError(
            "the token for the schema registry is not valid: it is empty, or contains whitespace or other characters "
            "that HTTP does not allow"
        )
    return token


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS settings that can be pickled. Contexts are created from them on demand, by each process."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)

    def context(self, *, with_certificate: bool) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"ca_file={self.ca_file!r} cannot be used: {error}") from None
        if with_certificate and self.cert_file is not None:
            try:
                # Without a password, OpenSSL would ask on the terminal for that of an encrypted key.
                context.load_cert_chain(self.cert_file, self.key_file, lambda: self.key_password or "")
            except (OSError, ssl.SSLError, ValueError) as error:
                raise ConfigError(
                    f"the certificate cert_file={self.cert_file!r}, key_file={self.key_file!r} cannot be used: {error}"
                ) from None
        return context
