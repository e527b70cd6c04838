"""Which version of ApiVersions a client sends to a broker first.

    a broker that does not know the version          responds with those that it supports (KIP-511), on the connection
    one that closes the connection instead           gets the next lower version on the next connection

Some servers with Kafka's protocol, and proxies, close the connection at a header that they do not know: that of version
3 is the first of the new form (KIP-482). Most connections that are closed that early have another reason: TLS is
expected, or nothing is running behind a load balancer. So no connection is made for the fallback alone: the next
attempt, after the usual backoff, sends the next version, and the highest one again after the lowest.

A version that was answered stays. Versions 0 to 2 do not have the features of the cluster, so if a broker that has
answered such a version names a higher one, that is tried once more.
"""

from __future__ import annotations

ATTEMPTS = (4, 3, 0)


class ApiVersionsFallback:
    """Of one broker, for one client."""

    def __init__(self) -> None:
        self._attempt = 0
        self._has_answered = False
        self._knows_features = False

    @property
    def version(self) -> int:
        return ATTEMPTS[self._attempt]

    def closed(self) -> None:
        """The broker has closed the connection before it responded."""
        if not self._knows_features:  # else it is restarting, or is overloaded
            self._attempt = (self._attempt + 1) % len(ATTEMPTS)

    def answered(self, highest: int) -> None:
        """The broker has responded, and supports the request up to this version."""
        self._knows_features |= self.version >= 3
        if not self._has_answered and self.version < 3 <= highest:
            self._attempt = next(at for at, version in enumerate(ATTEMPTS) if version <= highest)
        self._has_answered = True
