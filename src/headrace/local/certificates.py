"""Creates a CA and certificates for a local cluster. Needs the package cryptography.

The keys are elliptic curve keys, which are created in milliseconds. The private key of the CA is never stored.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import LocalBrokerError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_VALID_FOR = datetime.timedelta(days=365)
_CLOCKS_DIFFER = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate with that of its CA, and its private key, as PEM."""

    certificates: str
    key: str = field(repr=False)


class Authority:
    """A certificate authority. Raises `LocalBrokerError` without the package."""

    def __init__(self, name: str = "headrace local CA") -> None:
        x509, ec = _cryptography()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        now = datetime.datetime.now(datetime.UTC)
        # Strict clients reject a CA certificate without these extensions.
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._certificate = self._sign(
            self._name,
            self._key,
            now - _CLOCKS_DIFFER,
            now + _VALID_FOR,
            [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (identifier, False)],
        )
        self.pem = _pem(self._certificate)

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, valid_for: datetime.timedelta = _VALID_FOR, client: bool = False
    ) -> Signed:
        """Issue a certificate for these host names and addresses. If `valid_for` is negative, it has expired."""
        x509, ec = _cryptography()
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH] if client else [ExtendedKeyUsageOID.SERVER_AUTH]
        uses += [] if client else [ExtendedKeyUsageOID.CLIENT_AUTH]
        extensions: list[tuple[Any, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        if hosts:
            extensions.append((x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False))
        start = min(now, now + valid_for) - _CLOCKS_DIFFER
        certificate = self._sign(_named(name), key, start, now + valid_for, extensions)
        return Signed(_pem(certificate) + self.pem, _key_pem(key))

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        start: datetime.datetime,
        end: datetime.datetime,
        extensions: Sequence[tuple[Any, bool]],
    ) -> x509.Certificate:
        x509, _ = _cryptography()
        from cryptography.hazmat.primitives import hashes

        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())  # type: ignore[no-any-return]


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise LocalBrokerError(
            "a secured cluster needs the package cryptography, to create certificates: pip install 'headrace[local]'"
        ) from None
    return x509, ec


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
