"""How large a response may be, and what it means if it is larger."""

from __future__ import annotations

from ..config.client import ClientConfig
from ..errors import ProtocolError

_TLS_ALERT = 0x1503  # the first two bytes of a TLS alert
# The first response lists the broker's API versions in a kilobyte or two, and the responses of a login are no larger. A
# TLS port responds with an alert that reads as a length of 350 MB, a web server with text that reads as 1.2 GB.
_LARGEST_FIRST_FRAME = 1024 * 1024


def largest_frame(config: ClientConfig, *, is_ready: bool) -> int:
    """`is_ready`: the broker has returned its API versions and accepted the login, if any."""
    largest = config.receive_message_max_bytes
    return largest if is_ready else min(largest, _LARGEST_FIRST_FRAME)


def frame_size_error(host: str, size: int, config: ClientConfig, *, is_ready: bool) -> ProtocolError:
    largest = largest_frame(config, is_ready=is_ready)
    if is_ready and size > largest:
        return ProtocolError(
            f"{host} announced a response of {size} bytes, which exceeds "
            f"receive.message.max.bytes={largest}: raise that, or lower fetch.max.bytes"
        )
    kind = "TLS" if config.uses_tls else "plain-text"
    advice = ""
    if size >> 16 == _TLS_ALERT and not config.uses_tls:
        protocol = "SASL_SSL" if config.uses_sasl else "SSL"
        advice = f". The broker seems to expect TLS: set security.protocol={protocol}"
    return ProtocolError(
        f"{host} announced a response of {size} bytes: this is not a Kafka broker's {kind} port{advice}"
    )
