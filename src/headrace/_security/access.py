"""What a connection needs for TLS and login: the TLS context, and the messages of the SASL mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .settings import SecuritySettings

if TYPE_CHECKING:
    import ssl

    from .exchanges import Exchange
    from .logins import Begin
    from .tls import TlsContexts

_ON_THE_WIRE = {"AWS_MSK_IAM": "OAUTHBEARER"}


class Access:
    """Shared by all connections of a client, so that they reuse tokens and the results of slow computations."""

    def __init__(self, settings: SecuritySettings) -> None:
        # The name that brokers get.
        self.mechanism = (
            _ON_THE_WIRE.get(settings.sasl_mechanism, settings.sasl_mechanism) if settings.uses_sasl else None
        )
        self._contexts: TlsContexts | None = None
        self._begin: Begin | None = None
        # Imported here: most of the time of `import` is for what a client without them does not use.
        if settings.uses_tls:
            from .tls import TlsContexts

            self._contexts = TlsContexts(settings)
        if settings.uses_sasl:
            from .logins import login

            self._begin = login(settings)

    def check(self) -> None:
        """Raises ConfigError if certificates or keys cannot be used."""
        self.context()

    def context(self) -> ssl.SSLContext | None:
        """The TLS context for a new connection, or None without TLS. Raises ConfigError."""
        return None if self._contexts is None else self._contexts.current()

    async def exchange(self, host: str) -> Exchange:
        """The SASL exchange for one login. Raises AuthenticationError or NetworkError if no token or ticket is
        issued."""
        assert self._begin is not None
        return await self._begin(host)
