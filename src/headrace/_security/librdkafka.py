"""Converts the TLS and SASL settings to librdkafka's, for confluent-kafka's producer.

    trusted CAs        ssl.ca.location; ssl.ca.pem for certificates given as text or in a PKCS12 file
    certificate, key   ssl.certificate.* and ssl.key.*; a PKCS12 file is passed on unchanged
    user, password     sasl.username and sasl.password, also from sasl.jaas.config
    tokens             oauth_cb, a function that fetches tokens from the same source as this client

A setting that librdkafka does not have raises an error instead of being dropped: the producer must not connect with
weaker security.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from . import stores
from .access import token_source, user_and_password
from .settings import FIELDS, SecuritySettings, kerberos_login

_DEFAULT_LIFETIME = 300.0  # seconds, for tokens without an expiry time

OAuthCallback = Callable[[str], tuple[str, float, str, dict[str, str]]]


def librdkafka_settings(settings: SecuritySettings) -> dict[str, Any]:
    """Raises ConfigError if librdkafka has no equivalent settings."""
    found: dict[str, Any] = {"security.protocol": settings.security_protocol}
    if settings.uses_tls:
        found |= _tls(settings)
    if settings.uses_sasl:
        found |= _sasl(settings)
    return found


def _tls(settings: SecuritySettings) -> dict[str, Any]:
    if settings.ssl_enabled_protocols != FIELDS["ssl_enabled_protocols"].default:
        raise ConfigError("ssl.enabled.protocols is not supported by confluent-kafka, which produces these records")
    found: dict[str, Any] = {
        "ssl.endpoint.identification.algorithm": settings.ssl_endpoint_identification_algorithm or "none",
        "enable.ssl.certificate.verification": settings.enable_ssl_certificate_verification,
    }
    if settings.ssl_cipher_suites is not None:
        found["ssl.cipher.suites"] = settings.ssl_cipher_suites
    return found | _trust(settings) | _identity(settings)


def _trust(settings: SecuritySettings) -> dict[str, str]:
    if settings.ssl_ca_location is not None:
        return {"ssl.ca.location": os.path.expanduser(settings.ssl_ca_location)}
    if settings.ssl_truststore_location is not None:
        place, name = settings.ssl_truststore_location, "ssl.truststore.location"
        if stores.is_pem(stores.read_file(place, name), place, name):
            return {"ssl.ca.location": os.path.expanduser(place)}
        return {"ssl.ca.pem": stores.trusted_certificates(place, settings.ssl_truststore_password, name)}
    if settings.ssl_truststore_certificates is not None:
        return {"ssl.ca.pem": settings.ssl_truststore_certificates}
    return {}


def _identity(settings: SecuritySettings) -> dict[str, str]:
    if settings.ssl_certificate_location is not None:
        place = os.path.expanduser(settings.ssl_certificate_location)
        key = os.path.expanduser(settings.ssl_key_location or place)
        found = {"ssl.certificate.location": place, "ssl.key.location": key}
    elif settings.ssl_keystore_location is not None:
        place, name = os.path.expanduser(settings.ssl_keystore_location), "ssl.keystore.location"
        if not stores.is_pem(stores.read_file(place, name), place, name):
            return {"ssl.keystore.location": place, "ssl.keystore.password": settings.ssl_keystore_password or ""}
        found = {"ssl.certificate.location": place, "ssl.key.location": place}
    elif settings.ssl_keystore_certificate_chain is not None:
        chain = settings.ssl_keystore_certificate_chain
        found = {"ssl.certificate.pem": chain, "ssl.key.pem": settings.ssl_keystore_key or chain}
    else:
        return {}
    if password := settings.ssl_key_password or settings.ssl_keystore_password:
        found["ssl.key.password"] = password
    return found


def _sasl(settings: SecuritySettings) -> dict[str, Any]:
    mechanism = settings.sasl_mechanism
    if mechanism == "GSSAPI":
        return {"sasl.mechanism": mechanism, **_kerberos(settings)}
    if mechanism == "OAUTHBEARER":
        return {"sasl.mechanism": mechanism, "oauth_cb": _oauth_callback(settings)}
    username, password = user_and_password(settings)
    return {"sasl.mechanism": mechanism, "sasl.username": username, "sasl.password": password}


def _kerberos(settings: SecuritySettings) -> dict[str, str]:
    login = kerberos_login(settings)
    if login.ticket_cache is not None:
        raise ConfigError(
            "sasl.jaas.config: confluent-kafka, which produces these records, does not support ticketCache"
        )
    given = {"keytab": login.keytab, "principal": login.principal, "service.name": login.service}
    return {f"sasl.kerberos.{name}": value for name, value in given.items() if value is not None}


def _oauth_callback(settings: SecuritySettings) -> OAuthCallback:
    ask = token_source(settings)

    def answer(_: str) -> tuple[str, float, str, dict[str, str]]:
        """Called on a thread of librdkafka."""
        token = asyncio.run(ask())
        expires_at = time.time() + _DEFAULT_LIFETIME if token.expires_at is None else token.expires_at
        return token.value, expires_at, "", dict(token.extensions)

    return answer
