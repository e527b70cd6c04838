"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): neither side sends the password.

    -> n,,n=user,r=<nonce>
    <- r=<nonce + the server's>,s=<salt>,i=<iterations>
    -> c=biws,r=<both>,p=<proof that the client knows the password>
    <- v=<proof that the server knows it too>

The number of iterations that the server may request is bounded: few would make a stolen proof cheap to brute-force,
very many would keep this client busy. The last message is verified: a server that does not know the password is
rejected. User names and passwords are encoded as UTF-8 without SASLprep, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from .exchanges import Rejected, quoted

FEWEST_ITERATIONS = 4096
MOST_ITERATIONS = 500_000
_LARGEST_SALT = 1024
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<count>[0-9]{1,9})(?:,.*)?"
)


class SaltedPasswords:
    """Caches the result of the slow step for the next login: all brokers of a cluster use the same salt for a user."""

    def __init__(self, hash_name: str, password: str) -> None:
        self.hash_name = hash_name
        self.password = password
        self._known: tuple[tuple[bytes, int], bytes] | None = None

    def salted(self, salt: bytes, iterations: int) -> bytes:
        key = (salt, iterations)
        known = self._known
        if known is None or known[0] != key:
            made = hashlib.pbkdf2_hmac(self.hash_name, self.password.encode(), salt, iterations)
            known = self._known = (key, made)
        return known[1]


class Scram:
    """One login. `nonce` must be new and unpredictable each time."""

    def __init__(self, username: str, passwords: SaltedPasswords, nonce: str) -> None:
        self._passwords = passwords
        self.secret = passwords.password
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        return b"n,," + self._bare.encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._expected is None:
            return self._prove(challenge)
        self._check(challenge)
        return None

    def _prove(self, challenge: bytes) -> bytes:
        text = _text(challenge)
        if text.startswith("e="):
            raise Rejected(f"the server rejected the login: {quoted(text[2:], self.secret)}")
        parts = _SERVER_FIRST.fullmatch(text)
        if parts is None:
            raise Rejected("the server's first message is not a SCRAM message")
        if not parts["nonce"].startswith(self._nonce) or parts["nonce"] == self._nonce:
            raise Rejected("the server's nonce does not start with the client's: this may be a replayed login")
        count = int(parts["count"])
        if not FEWEST_ITERATIONS <= count <= MOST_ITERATIONS:
            raise Rejected(
                f"the server requests {count} iterations: {FEWEST_ITERATIONS} to {MOST_ITERATIONS} are accepted"
            )
        salted = self._passwords.salted(_decoded(parts["salt"]), count)
        closing = f"c=biws,r={parts['nonce']}"
        transcript = f"{self._bare},{text},{closing}".encode()
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._passwords.hash_name, client_key).digest()
        signature = self._hmac(stored_key, transcript)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._expected = self._hmac(self._hmac(salted, b"Server Key"), transcript)
        return f"{closing},p={base64.b64encode(proof).decode()}".encode()

    def _check(self, challenge: bytes) -> None:
        text = _text(challenge)
        if text.startswith("e="):
            raise Rejected(f"the server rejected the login: {quoted(text[2:], self.secret)}")
        assert self._expected is not None
        if not text.startswith("v=") or not hmac.compare_digest(_decoded(text[2:].partition(",")[0]), self._expected):
            raise Rejected("the server's signature is wrong: it does not know the password, so it is not a real broker")

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._passwords.hash_name)


def _text(challenge: bytes) -> str:
    try:
        return challenge.decode()
    except UnicodeDecodeError:
        raise Rejected("the server's message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Rejected("the server's salt or signature is not base64") from None
    if not found or len(found) > _LARGEST_SALT:
        raise Rejected("the server's salt or signature has an invalid size")
    return found
