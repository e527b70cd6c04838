"""Creates a client's TLS context from its settings, and recreates it when the files change.

Certificates are renewed on disk while a consumer runs, so every new connection checks whether the files have changed.
If changed files cannot be read, they may be incomplete: the previous context is used until they can be read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator

from ..errors import ConfigError
from . import stores
from .settings import SecuritySettings

log = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_FILES = (
    "ssl_ca_location",
    "ssl_truststore_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_keystore_location",
)

Stamp = tuple[tuple[int, int, int] | None, ...]


class TlsContexts:
    """Returns the current TLS context. Must be used by one thread at a time."""

    def __init__(self, settings: SecuritySettings) -> None:
        self._settings = settings
        self._files = [path for name in _FILES if (path := getattr(settings, name))]
        self._made_of: Stamp = ()
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        """Raises ConfigError if the files cannot be used, and no earlier version of them could."""
        stamp = tuple(map(_stamp, self._files))
        if self._context is not None and stamp == self._made_of:
            return self._context
        try:
            context = make_context(self._settings)
        except ConfigError as error:
            if self._context is None:
                raise
            log.warning(
                "the certificates on disk have changed but cannot be used, keeping the previous ones: %s", error
            )
            return self._context
        if self._context is not None:
            log.info("the certificates on disk have changed: new connections use the new ones")
        # The stamp was taken before the files were read, so a change during the read is noticed next time.
        self._context, self._made_of = context, stamp
        return context


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def make_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in settings.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.ssl_cipher_suites is not None:
        try:
            context.set_ciphers(settings.ssl_cipher_suites)
        except ssl.SSLError:
            raise ConfigError(
                f"ssl.cipher.suites={settings.ssl_cipher_suites}: OpenSSL knows none of these ciphers. Use OpenSSL's "
                "names, which differ from Java's"
            ) from None
    _trust(context, settings)
    _identify(context, settings)
    return context


def trust_of(settings: SecuritySettings) -> ssl.SSLContext:
    """A TLS context for HTTPS: it trusts the system's CAs and those in the settings."""
    context = ssl.create_default_context()
    with contextlib.suppress(ConfigError):  # `make_context` raises it for the connection to the broker
        _load_trusted(context, settings)
    return context


def _trust(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    context.check_hostname = settings.ssl_endpoint_identification_algorithm == "https"
    if not settings.enable_ssl_certificate_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return
    if _load_trusted(context, settings):
        # As in Java, every certificate in a truststore is trusted, even if it is not a root certificate.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    else:
        context.load_default_certs()


def _load_trusted(context: ssl.SSLContext, settings: SecuritySettings) -> bool:
    place, name = settings.ssl_ca_location, "ssl.ca.location"
    if place is not None and os.path.isdir(os.path.expanduser(place)):
        context.load_verify_locations(capath=os.path.expanduser(place))
        return True
    if place is not None:
        pem = stores.trusted_certificates(place, None, name)
    elif settings.ssl_truststore_location is not None:
        place, name = settings.ssl_truststore_location, "ssl.truststore.location"
        pem = stores.trusted_certificates(place, settings.ssl_truststore_password, name)
    elif settings.ssl_truststore_certificates is not None:
        place, name, pem = "…", "ssl.truststore.certificates", settings.ssl_truststore_certificates
    else:
        return False
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError):  # TypeError: the text is not ASCII
        raise ConfigError(f"{name}={place}: it contains no readable certificate") from None
    return True


def _identify(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    """Load this client's certificate, for mutual TLS."""
    password = settings.ssl_key_password
    if settings.ssl_certificate_location is not None:
        name, place = "ssl.certificate.location", settings.ssl_certificate_location
        key = settings.ssl_key_location or place
        stores.read_file(place, name)
        stores.read_file(key, "ssl.key.location")
        _load(context, os.path.expanduser(place), os.path.expanduser(key), password, f"{name}={place}")
    elif settings.ssl_keystore_location is not None:
        name, place = "ssl.keystore.location", settings.ssl_keystore_location
        found = stores.identity(place, settings.ssl_keystore_password, password, name)
        _load_texts(context, found, f"{name}={place}")
    elif settings.ssl_keystore_certificate_chain is not None:
        chain = settings.ssl_keystore_certificate_chain
        _load_texts(
            context,
            stores.TlsIdentity(chain, settings.ssl_keystore_key or chain, password),
            "ssl.keystore.certificate.chain",
        )


def _load_texts(context: ssl.SSLContext, found: stores.TlsIdentity, what: str) -> None:
    with _as_file(found.certificates) as certificates, _as_file(found.key) as key:
        _load(context, certificates, key, found.password, what)


def _load(context: ssl.SSLContext, certificates: str, key: str, password: str | None, what: str) -> None:
    try:
        # Without a password function, OpenSSL would prompt for the password on the terminal.
        context.load_cert_chain(certificates, key, password=lambda: password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = "the private key does not belong to the certificate"
        elif error.reason in ("BAD_DECRYPT", "BAD_PASSWORD_READ") or password is not None:
            reason = "the private key cannot be decrypted with its password"
        else:
            reason = "it contains no readable certificate with its key; for an encrypted key, set ssl.key.password"
        raise ConfigError(f"{what}: {reason}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: {error}") from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A temporary file that only this user can read: Python's OpenSSL reads certificates and keys only from files."""
    descriptor, path = tempfile.mkstemp(prefix="headrace-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
