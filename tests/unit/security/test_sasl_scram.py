"""SCRAM: the RFC's own example, a minimal server as an oracle, and dishonest servers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._security.exchanges import OAuthBearer, Plain, Rejected, extensions_in, quoted, rejection_reason
from headrace._security.scram import FEWEST_ITERATIONS, MOST_ITERATIONS, SaltedPasswords, Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"


class Server:
    """A server of RFC 5802. Tests can make it misbehave."""

    def __init__(self, hash_name: str, password: str, salt: bytes = b"pepper", iterations: int = 4096) -> None:
        self.hash_name, self.salt, self.iterations = hash_name, salt, iterations
        self.salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)

    def first(self, message: bytes) -> bytes:
        assert message.startswith(b"n,,")
        self.bare = message[3:].decode()
        self.nonce = self.bare.partition(",r=")[2] + "server"
        salt = base64.b64encode(self.salt).decode()
        self.said = f"r={self.nonce},s={salt},i={self.iterations}"
        return self.said.encode()

    def final(self, message: bytes) -> bytes | None:
        closing, _, proof = message.decode().partition(",p=")
        assert closing == f"c=biws,r={self.nonce}"
        transcript = f"{self.bare},{self.said},{closing}".encode()
        client_key = hmac.digest(self.salted, b"Client Key", self.hash_name)
        stored = hashlib.new(self.hash_name, client_key).digest()
        signature = hmac.digest(stored, transcript, self.hash_name)
        found = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, found).digest() != stored:
            return None
        server_key = hmac.digest(self.salted, b"Server Key", self.hash_name)
        return b"v=" + base64.b64encode(hmac.digest(server_key, transcript, self.hash_name))


def test_scram_follows_the_example_of_rfc_7677() -> None:
    scram = Scram("user", SaltedPasswords("sha256", "pencil"), NONCE)
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    said = rb"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert scram.answer(said) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    st.sampled_from(["sha256", "sha512"]), st.text(min_size=1), st.text(min_size=1).filter(lambda it: "\0" not in it)
)
def test_scram_authenticates_any_name_and_password(hash_name: str, password: str, name: str) -> None:
    name = name.encode("utf-8", "ignore").decode() or "x"
    password = password.encode("utf-8", "ignore").decode() or "x"
    server = Server(hash_name, password)
    scram = Scram(name, SaltedPasswords(hash_name, password), NONCE)
    final = scram.answer(server.first(scram.first()))
    assert final is not None
    said = server.final(final)
    assert said is not None
    assert scram.answer(said) is None
    sent_name = server.bare.partition(",r=")[0].removeprefix("n=")
    assert sent_name.replace("=2C", ",").replace("=3D", "=") == name


def test_scram_with_a_wrong_password_gives_no_valid_proof() -> None:
    server = Server("sha512", "right")
    scram = Scram("user", SaltedPasswords("sha512", "wrong"), NONCE)
    final = scram.answer(server.first(scram.first()))
    assert final is not None
    assert server.final(final) is None


def test_scram_refuses_a_server_that_does_not_know_the_password() -> None:
    """The server accepts the login, but cannot prove that it knows the password."""
    server = Server("sha256", "right")
    scram = Scram("user", SaltedPasswords("sha256", "right"), NONCE)
    scram.answer(server.first(scram.first()))
    impostor = b"v=" + base64.b64encode(b"x" * 32)
    with pytest.raises(Rejected, match="it is not a real broker"):
        scram.answer(impostor)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"r=other,s=cGVwcGVy,i=4096", "nonce"),
        (b"r=" + NONCE.encode() + b",s=cGVwcGVy,i=4096", "nonce"),
        (b"r=%sx,s=cGVwcGVy,i=%d" % (NONCE.encode(), FEWEST_ITERATIONS - 1), "iterations"),
        (b"r=%sx,s=cGVwcGVy,i=%d" % (NONCE.encode(), MOST_ITERATIONS + 1), "iterations"),
        (b"r=%sx,s=cGVwcGVy,i=99999999999999" % NONCE.encode(), "not a SCRAM message"),
        (b"r=%sx,s=====,i=4096" % NONCE.encode(), "base64"),
        (b"r=%sx,s=%s,i=4096" % (NONCE.encode(), b"QUFB" * 1000), "size"),
        (b"e=unknown-user", "unknown-user"),
        (b"e=" + b"\x1b[2J" * 500, "the server rejected the login"),
        (b"", "not a SCRAM message"),
        (b"\xff\xfe", "not UTF-8"),
        (b"v=abc", "not a SCRAM message"),
    ],
)
def test_scram_refuses_invalid_first_messages_of_a_server(said: bytes, reason: str) -> None:
    scram = Scram("user", SaltedPasswords("sha256", "the-password"), NONCE)
    scram.first()
    with pytest.raises(Rejected, match=re.escape(reason)) as caught:
        scram.answer(said)
    assert "the-password" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("said", [b"", b"v=", b"v=!!!", b"e=invalid-proof", b"\xff", b"v=" + b"A" * 5000, b"x"])
def test_scram_refuses_invalid_last_messages_of_a_server(said: bytes) -> None:
    server = Server("sha256", "right")
    scram = Scram("user", SaltedPasswords("sha256", "right"), NONCE)
    scram.answer(server.first(scram.first()))
    with pytest.raises(Rejected):
        scram.answer(said)


def test_scram_salts_a_password_once_for_each_salt_and_count() -> None:
    passwords = SaltedPasswords("sha256", "p")
    assert passwords.salted(b"salt", 4096) is passwords.salted(b"salt", 4096)
    assert passwords.salted(b"salt", 4097) != passwords.salted(b"salt", 4096)


# -- others --------------------------------------------------------------------------------------------------------


def test_plain_sends_user_and_password_after_zeros() -> None:
    assert Plain("me", "p wd").first() == b"\0me\0p wd"
    assert Plain("me", "p wd").answer(b"") is None


def test_oauthbearer_sends_its_token_and_extensions() -> None:
    bearer = OAuthBearer("abc.def", {"logicalCluster": "lkc-1"})
    assert bearer.first() == b"n,,\x01auth=Bearer abc.def\x01logicalCluster=lkc-1\x01\x01"
    assert bearer.answer(b"") is None
    refused = OAuthBearer("abc", {})
    assert refused.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(Rejected):
        refused.answer(b"again")
    assert rejection_reason(b'{"status":"invalid_token"}') == "invalid_token"
    assert rejection_reason(b"[]") == rejection_reason(b"\xff") == rejection_reason(b'{"status":{}}'[:-2]) == ""


def test_extensions_of_a_token_are_parsed_from_text() -> None:
    assert extensions_in("a=1, b = 2".replace(" = ", "=")) == {"a": "1", "b": "2"}
    assert extensions_in(None) == {}
    for wrong in ("a", "a=", "=1", "a1=2", "auth=x", "a=\x01"):
        with pytest.raises(ValueError, match=r"form|token"):
            extensions_in(wrong)


def test_quoted_text_of_a_peer_is_short_and_printable() -> None:
    assert quoted("a\nb\x1b[31m") == "a b [31m"
    assert len(quoted("x" * 10_000)) < 250
