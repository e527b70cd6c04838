"""Opens the byte stream of a connection: TCP, and TLS on top of it.

Failures are mapped to errors:

    the host cannot be reached, or closes the connection    NetworkError, which is retriable
    either side rejects the other's certificate             AuthenticationError, step tls
    the peer does not speak TLS                             ProtocolError
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import struct

from .._security.access import Access
from ..errors import AuthenticationError, HeadraceError, NetworkError, ProtocolError

_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: on, with a timeout of 0
_NOT_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE"}


async def open_transport(
    protocol: asyncio.BaseProtocol, host: str, port: int, access: Access, setup_timeout: float
) -> None:
    """Connect `protocol` to the broker. Raises the errors listed above."""
    loop = asyncio.get_running_loop()
    context = access.context()
    name = f"{host}:{port}"
    try:
        async with asyncio.timeout(setup_timeout):
            if context is None:
                await loop.create_connection(lambda: protocol, host, port)
            else:
                await loop.create_connection(
                    lambda: protocol,
                    host,
                    port,
                    ssl=context,
                    server_hostname=host,
                    ssl_handshake_timeout=setup_timeout + 1,
                    ssl_shutdown_timeout=1,
                )
    except TimeoutError:
        raise NetworkError(f"cannot connect to {name}: no response in {setup_timeout:.1f} s") from None
    except ssl.SSLError as error:
        raise tls_error(name, error) from error
    except (OSError, UnicodeError, OverflowError, ValueError) as error:  # the last three: an invalid name or port
        if context is not None and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            advice = "SASL_PLAINTEXT" if access.mechanism is not None else "PLAINTEXT"
            reason = (
                f"the broker closed the connection during the TLS handshake. This port seems not to use TLS: set "
                f"security.protocol to {advice}, or use the broker's TLS port"
            )
        else:
            reason = _reason(error, host)
        raise NetworkError(f"cannot connect to {name}: {reason}") from error


def socket_of(transport: asyncio.Transport) -> int | None:
    """The file descriptor of the transport's socket, if its bytes are those of the socket. With TLS they are not."""
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is None or raw.fileno() < 0 or transport.get_extra_info("sslcontext") is not None:
        return None
    return raw.fileno()


def reset_on_close(transport: asyncio.Transport | None) -> None:
    """Make the socket close with a reset, which drops unread data and informs the peer at once. After an orderly
    close, a peer that keeps sending and has filled the receive window would wait for a minute."""
    raw = None if transport is None else transport.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):  # the socket is closed already
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _reason(error: Exception, host: str) -> str:
    """The system's error as readable text: without error numbers, and once for all addresses of a host name."""
    if isinstance(error, socket.gaierror):
        return f"the host name {host} cannot be resolved ({error.strerror})"
    if isinstance(error, OSError) and (numbers := re.findall(r"\[Errno (\d+)\]", str(error))):
        return " / ".join(dict.fromkeys(os.strerror(int(number)).lower() for number in numbers))
    return str(error) or "the connection was closed"


def tls_error(name: str, error: ssl.SSLError) -> HeadraceError:
    """The error to raise for an error of OpenSSL. `name` is the broker's address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(
            f"the certificate of {name} was rejected: {error.verify_message}{_advice(error)}", step="tls"
        )
    reason = error.reason or str(error)
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return AuthenticationError(
            f"{name} rejected the TLS connection: {alert}. The broker may require a client certificate, or a different "
            f"one: see ssl.certificate.location and ssl.keystore.location",
            step="tls",
        )
    if reason in _NOT_TLS:
        return ProtocolError(
            f"{name} does not speak TLS, but security.protocol is SSL or SASL_SSL. Set security.protocol to PLAINTEXT "
            f"or SASL_PLAINTEXT, or use the broker's TLS port"
        )
    return NetworkError(f"the TLS connection to {name} failed: {reason.replace('_', ' ').lower()}")


def _advice(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message.lower()
    if "issuer" in text or "self-signed" in text or "self signed" in text:
        return ". Its CA is not trusted: see ssl.ca.location and ssl.truststore.location"
    if "hostname" in text or "ip address" in text:
        return ". Connect with a host name that the certificate contains, or issue a certificate for this name"
    return ""
