"""The first exchange on a connection, and what its failure tells about the broker."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from .._protocol.codes import NONE, kafka_error
from .._protocol.messages import API_VERSIONS
from .._protocol.versions import BrokerVersions, next_api_versions_attempt
from .._version import __version__
from ..config.client import ClientConfig
from ..errors import HeadraceError, NetworkError
from .calls import UNSUPPORTED_VERSION
from .transport import tls_error

if TYPE_CHECKING:
    from .connection import Connection

_FIRST_AFTER_VERSIONS = 2  # the correlation id of the first request after ApiVersions


class ClosedAtApiVersions(NetworkError):
    """The broker has closed the connection instead of responding to ApiVersions."""


async def negotiate(connection: Connection, first: int) -> BrokerVersions:
    """The API versions that the broker supports. `first` is the version of the first request. Raises KafkaError if the
    broker does not return them, and ClosedAtApiVersions."""
    version: int | None = first
    while version is not None:
        fields = {"client_software_name": "headrace", "client_software_version": __version__}
        reply = await connection.call(API_VERSIONS, fields, version=version)
        if reply.body.error_code == NONE:
            return BrokerVersions.from_response(connection.host, reply.body)
        if reply.body.error_code != UNSUPPORTED_VERSION:
            break
        version = next_api_versions_attempt(version, reply.body)
    raise kafka_error(reply.body.error_code, f"ApiVersions to {connection.host}")


def loss(
    host: str, error: Exception | None, versions: BrokerVersions, config: ClientConfig, waiting: int
) -> HeadraceError:
    """Why a connection was lost. `waiting` is the correlation id of the last request, if it has no response yet."""
    # With TLS 1.3, a broker checks this client's certificate after the client has finished its handshake.
    if isinstance(error, ssl.SSLError) and not versions.ranges:
        return tls_error(host, error)
    reason = f": {error}" if error else " by the broker"
    if waiting == _FIRST_AFTER_VERSIONS and not config.uses_sasl:
        reason += " at the first request: it may expect a login (see security.protocol)"
    elif waiting and not versions.ranges and not config.uses_tls:
        reason += " before its first response: it may expect TLS (see security.protocol), or is not a Kafka broker"
    kind = ClosedAtApiVersions if waiting and not versions.ranges else NetworkError
    return kind(f"the connection to {host} was closed{reason}")
