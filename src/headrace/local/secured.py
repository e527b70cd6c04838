"""The secured mode of a local cluster: TLS, users, ACLs.

    SECURE      the listener for clients: SASL over TLS, with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512
    MUTUAL      the listener for brokers, and for clients with a certificate: mutual TLS
    CONTROLLER  the listener for the quorum: mutual TLS

    <data>/security/ca.pem                the CA certificate, which clients must trust
    <data>/security/broker.pem            the certificate and key of the brokers
    <data>/security/client.pem            the certificate and key of a client, for MUTUAL
    <data>/security/client.properties     the settings of a client (Java or headrace) for SECURE
    <data>/security/users.json            names and passwords
    <data>/security/bootstrap.checkpoint  the start of a new metadata log, with the SCRAM credentials of the users

Without ACLs, only `admin` and the holder of client.pem have permissions. Only their owner can read files with secrets.
All files are created once for a data directory; the certificates are renewed before they expire.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .._arguments import short_repr
from .certificates import Authority
from .errors import LocalBrokerError
from .java import Java
from .kafka_home import KafkaHome, formatted

ADMIN = "admin"
_BROKER, _CLIENT = "headrace-broker", "headrace-client"
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MECHANISMS = ("PLAIN", *_HASHES)
_ITERATIONS = 4096
_NEW_CERTIFICATES_AFTER = 300 * 86_400.0
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class Secured:
    """The files and users of a secured cluster."""

    path: Path
    users: Mapping[str, str] = field(repr=False)

    @property
    def ca(self) -> Path:
        return self.path / "ca.pem"

    @property
    def client_pem(self) -> Path:
        return self.path / "client.pem"

    @property
    def client_properties(self) -> Path:
        return self.path / "client.properties"

    @property
    def bootstrap_checkpoint(self) -> Path:
        return self.path / "bootstrap.checkpoint"

    def broker_properties(self) -> dict[str, str]:
        users = " ".join(f'user_{name}="{_quoted(password)}"' for name, password in self.users.items())
        return {
            "inter.broker.listener.name": "MUTUAL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.path / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": f"{_PLAIN} required {users};",
            "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:CN={_BROKER};User:CN={_CLIENT};User:{ADMIN}",
        }

    def sasl_config(self, username: str, mechanism: str) -> dict[str, str]:
        """The client settings for SECURE, without the address. Raises `LocalBrokerError` for an unknown user."""
        if not isinstance(username, str) or username not in self.users:
            raise LocalBrokerError(f"there is no user {short_repr(username)}: the users are {', '.join(self.users)}")
        if mechanism not in _MECHANISMS:
            raise LocalBrokerError(f"mechanism={short_repr(mechanism)}: must be {' or '.join(_MECHANISMS)}")
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": username,
            "sasl.password": self.users[username],
            "ssl.ca.location": str(self.ca),
        }

    def mutual_config(self) -> dict[str, str]:
        """The client settings for MUTUAL, without the address."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.client_pem),
            "ssl.key.location": str(self.client_pem),
        }

    def context(self) -> ssl.SSLContext:
        """The TLS context for requests over MUTUAL."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.client_pem)
        return context

    def write_client_properties(self, bootstrap_servers: str) -> None:
        login = f'{_SCRAM} required username="{ADMIN}" password="{_quoted(self.users[ADMIN])}";'
        lines = {
            "bootstrap.servers": bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": login.replace("\\", "\\\\"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        _write_private(self.client_properties, "".join(f"{name}={value}\n" for name, value in lines.items()))


def check_users(users: Mapping[str, str]) -> None:
    """Raises `LocalBrokerError`."""
    for name, password in users.items():
        if not name.isidentifier() or not name.isascii():
            raise LocalBrokerError(f"{name!r} is not a valid user name: use letters, digits and _")
        if not password or not password.isprintable():
            raise LocalBrokerError(f"the password of {name} is empty, or contains an unprintable character")


def secure(path: Path, users: Mapping[str, str], java: Java, kafka: KafkaHome, host: str) -> Secured:
    """Create the files that do not exist yet. Raises `LocalBrokerError`."""
    path.mkdir(mode=0o700, exist_ok=True)
    secured = Secured(path, _users(path / "users.json", users))
    if _age(secured.ca) > _NEW_CERTIFICATES_AFTER:
        _make_certificates(secured, host)
    if not secured.bootstrap_checkpoint.exists():
        _make_checkpoint(secured, java, kafka)
    return secured


def _users(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        known = {ADMIN: secrets.token_urlsafe(18), **given}
        _write_private(path, json.dumps(known))
    except ValueError as error:
        raise LocalBrokerError(f"{path} is damaged: choose another data directory, or delete this one") from error
    if any(known.get(name) != password for name, password in given.items()):
        raise LocalBrokerError(
            f"the users of {path.parent.parent} differ: users are created with the data directory and cannot change"
        )
    return known


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _make_certificates(secured: Secured, host: str) -> None:
    authority = Authority()
    broker = authority.issue(_BROKER, [host, "localhost"])
    client = authority.issue(_CLIENT, client=True)
    _write_private(secured.path / "broker.pem", broker.key + broker.certificates)
    _write_private(secured.client_pem, client.key + client.certificates)
    secured.ca.write_text(authority.pem)  # written last: it marks the other files as complete


def _make_checkpoint(secured: Secured, java: Java, kafka: KafkaHome) -> None:
    """Create the checkpoint with Kafka's tool. Its command line has salted hashes instead of passwords."""
    proofs = [
        option
        for name, password in secured.users.items()
        for mechanism in _HASHES
        for option in ("--add-scram", _scram_record(mechanism, name, password))
    ]
    with tempfile.TemporaryDirectory(dir=secured.path) as scratch:
        checkpoint, done = formatted(kafka, Path(scratch), java, *proofs)
        if done.returncode != 0:
            raise LocalBrokerError(
                f"Kafka's users cannot be created (exit code {done.returncode}):\n{done.stdout[-2000:]}"
            )
        os.chmod(checkpoint, 0o600)
        shutil.move(checkpoint, secured.bootstrap_checkpoint)


def _scram_record(mechanism: str, name: str, password: str) -> str:
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, _ITERATIONS)
    parts = {"salt": base64.b64encode(salt).decode(), "saltedpassword": base64.b64encode(salted).decode()}
    shown = ",".join(f'{key}="{value}"' for key, value in parts.items())
    return f"{mechanism}=[name={name},{shown},iterations={_ITERATIONS}]"


def _quoted(password: str) -> str:
    return password.replace("\\", "\\\\").replace('"', '\\"')


def _write_private(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.rename(path)
