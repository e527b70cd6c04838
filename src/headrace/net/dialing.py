"""Makes the stream that a connection runs on: TCP, and TLS over it.

What goes wrong is told as what it is:

    cannot be reached, or closed in the middle            NetworkError: it may work later
    a certificate that is not accepted, on either side    AuthenticationError, step tls
    something that does not speak TLS at all              ProtocolError
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl

from ..errors import AuthenticationError, HeadraceError, NetworkError, ProtocolError
from ..security.access import Access

_NOT_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE"}


async def dial(protocol: asyncio.BaseProtocol, host: str, port: int, access: Access, setup_timeout: float) -> None:
    """Raises as above."""
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
        raise NetworkError(f"cannot connect to {name}: no answer in {setup_timeout:.1f} s") from None
    except ssl.SSLError as error:
        raise tls_failure(name, error) from error
    except (OSError, UnicodeError, OverflowError, ValueError) as error:  # the latter: no such name or port can be
        if context is not None and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            advice = "SASL_PLAINTEXT" if access.mechanism is not None else "PLAINTEXT"
            reason = (
                f"it was closed during the TLS handshake. The broker seems not to expect TLS there: see "
                f"security.protocol (it may have to be {advice}), or use the broker's TLS port"
            )
        else:
            reason = _reason(error, host)
        raise NetworkError(f"cannot connect to {name}: {reason}") from error


def _reason(error: Exception, host: str) -> str:
    """What the system says, for a person: without numbers, and once for all addresses of a name."""
    if isinstance(error, socket.gaierror):
        return f"the name {host} does not resolve ({error.strerror})"
    if isinstance(error, OSError) and (numbers := re.findall(r"\[Errno (\d+)\]", str(error))):
        return " / ".join(dict.fromkeys(os.strerror(int(number)).lower() for number in numbers))
    return str(error) or "it was closed"


def tls_failure(name: str, error: ssl.SSLError) -> HeadraceError:
    """What OpenSSL says, for a person. `name` is the broker's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(
            f"the certificate of {name} is not accepted: {error.verify_message}{_advice(error)}", step="tls"
        )
    reason = error.reason or str(error)
    if "ALERT" in reason:
        said = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return AuthenticationError(
            f"{name} ended the TLS connection: {said}. It may want a certificate of this client, or another one: see "
            f"ssl.certificate.location and ssl.keystore.location",
            step="tls",
        )
    if reason in _NOT_TLS:
        return ProtocolError(
            f"{name} does not speak TLS: this is not the port for security.protocol=SSL or SASL_SSL. The broker seems "
            f"to expect PLAINTEXT or SASL_PLAINTEXT there"
        )
    return NetworkError(f"the TLS connection to {name} failed: {reason.replace('_', ' ').lower()}")


def _advice(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message.lower()
    if "issuer" in text or "self-signed" in text or "self signed" in text:
        return ". Its CA is not known here: see ssl.ca.location and ssl.truststore.location"
    if "hostname" in text or "ip address" in text:
        return ". Connect by a name that is in it, or have one made for this name"
    return ""
