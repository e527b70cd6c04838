"""Settings of TLS and SASL: what is understood, what is refused and how, and that secrets are not shown."""

from __future__ import annotations

import builtins
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace.config import ConsumerConfig
from headrace.errors import ConfigError
from headrace.local.certificates import Authority
from headrace.security.tls import make_context
from headrace.share_config import ShareConsumerConfig
from support.secure_server import write

AUTHORITY = Authority()
OWN = AUTHORITY.issue("me", client=True)
SECRET = "s3cr3t-0f-the-test"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def parsed(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse({"bootstrap.servers": "b:1"}, **settings)


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(**settings)
    text = str(caught.value)
    assert SECRET not in text
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return text


def test_both_consumers_have_them() -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "plain", "sasl.username": "u", "sasl.password": SECRET}
    for found in (
        ConsumerConfig.parse({"bootstrap.servers": "b:1", **login}),
        ShareConsumerConfig.parse({"bootstrap.servers": "b:1", "group.id": "g", **login}),
    ):
        assert (found.security_protocol, found.sasl_mechanism, found.sasl_username) == ("sasl_ssl", "PLAIN", "u")
        assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl_mechanism": "PLAIN"}, "sasl.username is missing"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u"}, "sasl.password is missing"),
        ({"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": SECRET}, "sasl.username is missing"),
        ({"sasl_mechanism": "SCRAM-SHA-1"}, "must be GSSAPI or PLAIN or SCRAM-SHA-256"),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "examples/msk_iam.py"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.callback"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "https://x/t"},
            "sasl.oauthbearer.client.id is missing",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": f"file:///{SECRET}"},
            "must be an https:// address",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_callback": "no.such.module:token"},
            "it is not there",
        ),
        ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_callback": "os:sep"}, "it is not a function"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{SCRAM} required password="{SECRET}";'}, "does not fit"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN} required password="{SECRET}"'}, "no semicolon"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN} required password="{SECRET};'}, "cannot be read"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN} password="{SECRET}";'}, "must be of the form"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'a.B required password="{SECRET}";'}, "B is not known here"),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": f"{SCRAM} required tokenauth=true;"},
            "tokenauth of ScramLoginModule has no effect here: delegation tokens are not supported",
        ),
        (
            {"sasl_jaas_config": "x.Krb5LoginModule required useTicketCache=true keyTab='/etc/me' serviceName=kafka;"},
            "keyTab needs useKeyTab=true",
        ),
        ({"sasl_jaas_config": "x.Krb5LoginModule required useKeyTab=true;"}, "useKeyTab=true needs keyTab"),
        (
            {"sasl_jaas_config": "x.Krb5LoginModule required useTicketCache=true renewTGT=true;"},
            "renewTGT of Krb5LoginModule has no effect here: with a keytab it is not needed",
        ),
        ({"sasl_kerberos_kinit_cmd": "kinit"}, "use sasl.kerberos.keytab"),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_jaas_config": f"x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub={SECRET};",
            },
            "unsecuredLoginStringClaim_sub of OAuthBearerLoginModule has no effect here",
        ),
        (
            {
                "sasl_mechanism": "PLAIN",
                "sasl_username": "u",
                "sasl_jaas_config": f"{PLAIN} required password={SECRET};",
            },
            "give one of them",
        ),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": 5}, "the value given: must be a string"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": f"{SECRET}\0"}, "NUL"),
        ({"oauth_cb": print}, "sasl.oauthbearer.token.callback"),
    ],
)
def test_a_login_that_makes_no_sense(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(security_protocol="SASL_SSL", **settings)


def test_kerberos_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    assert "pip install 'headrace[kerberos]'" in refusal(security_protocol="SASL_SSL")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f'{PLAIN} required username="a" password="b c";', {"username": "a", "password": "b c"}),
        (f"{PLAIN} REQUIRED username='a' password='b\"c' ;", {"username": "a", "password": 'b"c'}),
        (f'\n  {PLAIN}\n required\n  username = a\n password="x\\"y\\\\z";\n', {"username": "a", "password": 'x"y\\z'}),
        (f"{PLAIN} required;", {}),
    ],
)
def test_java_s_login_strings(text: str, found: dict[str, str]) -> None:
    login = parsed(sasl_jaas_config=text).sasl_jaas_config
    assert login is not None
    assert (login.module, dict(login.options)) == ("PlainLoginModule", found)
    assert "b" not in repr(login).replace("PlainLoginModule", "")


# -- certificates and keys -------------------------------------------------------------------------------------------


def pkcs12_file(where: Path, password: bytes = SECRET.encode(), *, trusted_only: bool = False) -> str:
    key = serialization.load_pem_private_key(OWN.key.encode(), None)
    own, *others = x509.load_pem_x509_certificates(OWN.certificates.encode())
    parts: tuple[Any, ...] = (None, None, None, others) if trusted_only else (b"me", key, own, others)
    where.write_bytes(pkcs12.serialize_key_and_certificates(*parts, serialization.BestAvailableEncryption(password)))
    return str(where)


def encrypted_key() -> str:
    key = serialization.load_pem_private_key(OWN.key.encode(), None)
    encryption = serialization.BestAvailableEncryption(SECRET.encode())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, encryption).decode()


@pytest.mark.parametrize("form", ["PEM", "PKCS12", "JKS"])
def test_stores_are_known_by_what_is_in_them(tmp_path: Path, form: str) -> None:
    """Java reads PKCS12 that is called JKS."""
    pem = form == "PEM"
    store = write(tmp_path / "key", OWN.key + OWN.certificates) if pem else pkcs12_file(tmp_path / "key")
    trust = write(tmp_path / "ca", AUTHORITY.pem) if pem else pkcs12_file(tmp_path / "ca", trusted_only=True)
    found = parsed(
        security_protocol="SSL",
        ssl_keystore_location=store,
        ssl_keystore_type=form,
        ssl_keystore_password=SECRET,
        ssl_truststore_location=trust,
        ssl_truststore_password=SECRET,
    )
    assert make_context(found).cert_store_stats()["x509_ca"] == 1
    assert not list(tmp_path.glob("headrace-*"))


def test_an_encrypted_key(tmp_path: Path) -> None:
    own = {"ssl_certificate_location": write(tmp_path / "me.pem", OWN.certificates)}
    own |= {"ssl_key_location": write(tmp_path / "me.key", encrypted_key()), "security_protocol": "SSL"}
    parsed(**own, ssl_key_password=SECRET)
    assert "cannot be read with its password" in refusal(**own, ssl_key_password="wrong")
    assert "ssl.certificate.location" in refusal(**own)


def test_the_key_of_another_certificate(tmp_path: Path) -> None:
    other = AUTHORITY.issue("other", client=True)
    own = write(tmp_path / "me.pem", OWN.certificates)
    wrong = write(tmp_path / "other.key", other.key)
    said = refusal(security_protocol="SSL", ssl_certificate_location=own, ssl_key_location=wrong)
    assert "the key is not the certificate's" in said


@pytest.mark.parametrize("name", ["ssl_ca_location", "ssl_truststore_location", "ssl_keystore_location"])
def test_files_that_are_not_what_they_should_be(tmp_path: Path, name: str) -> None:
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\x02")
    said = refusal(security_protocol="SSL", **{name: str(jks)})
    assert "JKS" in said
    assert f"keytool -importkeystore -srckeystore {jks} -destkeystore {tmp_path / 'store.p12'}" in said
    assert "No such file" in refusal(security_protocol="SSL", **{name: str(tmp_path / "missing")})
    assert "neither PEM nor PKCS12" in refusal(security_protocol="SSL", **{name: write(tmp_path / "text", "hello")})
    broken = write(tmp_path / "broken.pem", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    assert "can be read" in refusal(security_protocol="SSL", **{name: broken})
    (tmp_path / "damaged.p12").write_bytes(b"\x30\x82\x01\x00damaged")
    assert "damaged" in refusal(security_protocol="SSL", **{name: str(tmp_path / "damaged.p12")})


def test_a_store_with_a_wrong_password_or_none(tmp_path: Path) -> None:
    store = {"security_protocol": "SSL", "ssl_keystore_location": pkcs12_file(tmp_path / "key.p12")}
    assert "cannot be opened with its password" in refusal(**store, ssl_keystore_password="wrong")
    assert "needs a password" in refusal(**store)


def test_pkcs12_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pkcs12_file(tmp_path / "key.p12")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'headrace[auth]'" in refusal(security_protocol="SSL", ssl_keystore_location=store)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ssl_ca_location": "a", "ssl_truststore_location": "b"}, "give one of them"),
        ({"ssl_certificate_location": "a", "ssl_keystore_location": "b"}, "give one of them"),
        ({"ssl_key_location": "a"}, "needs ssl.certificate.location"),
        ({"ssl_keystore_key": SECRET}, "needs ssl.keystore.certificate.chain"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "must be TLSv1.2, TLSv1.3 or both"),
        ({"ssl_endpoint_identification_algorithm": "ldaps"}, "must be https"),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_NULL_SHA"}, "its names are not Java's"),
        ({"ssl_truststore_type": "BKS"}, "must be PEM or PKCS12"),
        ({"ssl_engine_factory_class": "x"}, "Java classes cannot be run here"),
    ],
)
def test_tls_that_makes_no_sense(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(security_protocol="SSL", **settings)


def test_a_protocol_that_was_forgotten_is_told(caplog: pytest.LogCaptureFixture) -> None:
    parsed(sasl_username="u", sasl_password=SECRET, ssl_ca_location="/no/such/file")
    assert "ssl.ca.location is set but has no effect with security.protocol=plaintext" in caplog.text
    assert "sasl.username is set" in caplog.text
    parsed(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="u", sasl_password=SECRET)
    assert "for anybody to read" in caplog.text
    assert SECRET not in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)
