"""Reads certificates and keys from files: PEM, or PKCS12 (the `.p12` files of Java and browsers).

The file's first bytes tell its type, not its name or `ssl.keystore.type`. Java does the same for PKCS12 files that are
called JKS. PKCS12 files are read by the package `cryptography`, which is an extra.

From PEM text only the blocks are used, as in Java; text around them is ignored. Blanks may replace line breaks, because
values of settings often contain none.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_LARGEST_FILE = 16 * 2**20
_BEGIN = "-----BEGIN "
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A certificate chain and its private key, both PEM. The password is None if the key is not encrypted."""

    certificates: str = field(repr=False)  # may also contain the key
    key: str = field(repr=False)
    password: str | None = field(repr=False)


def read_file(path: str, name: str) -> bytes:
    """Raises ConfigError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{name}={path}: {error.strerror or error}") from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{name}={path}: the file is larger than {_LARGEST_FILE // 2**20} MiB")
    return data


def trusted_certificates(path: str, password: str | None, name: str) -> str:
    """All certificates of a truststore as PEM. Raises ConfigError."""
    data = read_file(path, name)
    if is_pem(data, path, name):
        return pem_blocks(data.decode("utf-8", "replace"))
    _, _, certificates = _pkcs12(data, password, path, name)
    if not certificates:
        raise ConfigError(f"{name}={path}: the file contains no certificate")
    return certificates


def identity(path: str, store_password: str | None, key_password: str | None, name: str) -> TlsIdentity:
    """The private key of a keystore and its certificates. Raises ConfigError."""
    data = read_file(path, name)
    if is_pem(data, path, name):
        text = pem_blocks(data.decode("utf-8", "replace"))
        return TlsIdentity(text, text, key_password or store_password)
    key, one_time, certificates = _pkcs12(data, store_password, path, name)
    if not key:
        raise ConfigError(f"{name}={path}: the file contains no private key")
    return TlsIdentity(certificates, key, one_time)


def is_pem(data: bytes, path: str, name: str) -> bool:
    """Whether the data is PEM; if not, it is PKCS12. Raises ConfigError if it is neither."""
    if data[:4] in (_JKS, _JCEKS):
        raise ConfigError(
            f"{name}={path} is a JKS file, which only Java can read. Convert it with: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {Path(path).with_suffix('.p12')} -deststoretype PKCS12"
        )
    if _BEGIN.encode() in data:
        return True
    if data[:1] == b"\x30":
        return False
    raise ConfigError(f"{name}={path} is neither PEM nor PKCS12")


def pem_blocks(text: str) -> str:
    """Format PEM blocks as OpenSSL requires. Text with an incomplete block, such as a file that is still being written,
    is returned unchanged, so that OpenSSL rejects it."""
    found = _BLOCK.findall(text)
    if not found or len(found) != text.count(_BEGIN):
        return text
    return "\n".join(f"-----BEGIN {kind}-----\n{_lines(body)}\n-----END {kind}-----" for kind, body in found)


def _lines(body: str) -> str:
    if ":" in body:  # an encrypted key in the old format: its headers need their line breaks
        return body.strip()
    return "\n".join(re.findall(".{1,64}", "".join(body.split())))


def _pkcs12(data: bytes, password: str | None, path: str, name: str) -> tuple[str, str, str]:
    """The key, encrypted with a random one-time password; that password; all certificates, the key's own first."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{name}={path}: to read PKCS12 files, pip install 'headrace[auth]', or convert the file to PEM with "
            "openssl pkcs12"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        what = "needs a password, or is damaged" if password is None else "cannot be opened with its password"
        raise ConfigError(f"{name}={path} {what}") from None
    found = [*([store.cert] if store.cert else []), *store.additional_certs]
    pem = serialization.Encoding.PEM
    certificates = "".join(item.certificate.public_bytes(pem).decode() for item in found)
    if store.key is None:
        return "", "", certificates
    one_time = secrets.token_urlsafe(24)
    # OpenSSL reads keys only from files. The key is encrypted, so that it is never on disk unencrypted.
    encryption = serialization.BestAvailableEncryption(one_time.encode())
    key = store.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption).decode()
    return key, one_time, certificates
