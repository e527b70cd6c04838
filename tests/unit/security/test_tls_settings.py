"""TLS and SASL settings: accepted forms, errors for rejected ones, and no secrets in any message."""

from __future__ import annotations

import builtins
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace._security.tls import TlsContexts, make_context
from headrace.cli.spark_server import REDACTED
from headrace.config.consumer import ConsumerConfig
from headrace.config.share import ShareConsumerConfig
from headrace.errors import ConfigError
from headrace.local.certificates import Authority
from support.brokers.fake_tls_broker import write

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


def test_both_configs_accept_security_settings_and_hide_secrets() -> None:
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
        (
            {"sasl_client_callback_handler_class": "org.example.Handler"},
            "headrace cannot run Java classes: use sasl.oauthbearer.token.callback",
        ),
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.callback"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "https://x/t"},
            "sasl.oauthbearer.client.id is missing",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": f"file:///{SECRET}"},
            "must be an https:// URL",
        ),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_callback": print,
                "sasl_jaas_config": f'x.OAuthBearerLoginModule required extension_a="{SECRET}\\1";',
            },
            "sasl.jaas.config: extensions must be",
        ),
        (
            {"sasl_login_callback_handler_class": "org.example.OAuthBearerLoginCallbackHandler"},
            "headrace cannot run Java classes: use sasl.oauthbearer.token.callback",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_callback": "no.such.module:token"},
            "the function cannot be imported",
        ),
        ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_callback": "os:sep"}, "must name a function"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{SCRAM} required password="{SECRET}";'}, "does not match"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN} required password="{SECRET}"'},
            "the semicolon at the end is missing",
        ),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN} required password="{SECRET};'}, "cannot be parsed"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN} password="{SECRET}";'}, "must have the form"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'a.B required password="{SECRET}";'}, "B is not supported"),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": f"{SCRAM} required tokenauth=true;"},
            "tokenauth of ScramLoginModule is not supported: delegation tokens are not supported",
        ),
        (
            {"sasl_jaas_config": "x.Krb5LoginModule required useTicketCache=true keyTab='/etc/me' serviceName=kafka;"},
            "keyTab needs useKeyTab=true",
        ),
        ({"sasl_jaas_config": "x.Krb5LoginModule required useKeyTab=true;"}, "useKeyTab=true needs keyTab"),
        (
            {"sasl_jaas_config": "x.Krb5LoginModule required useTicketCache=true renewTGT=true;"},
            "renewTGT of Krb5LoginModule is not supported: it is not needed with a keytab",
        ),
        ({"sasl_kerberos_kinit_cmd": "kinit"}, "use sasl.kerberos.keytab"),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_jaas_config": f"x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub={SECRET};",
            },
            "unsecuredLoginStringClaim_sub of OAuthBearerLoginModule is not supported",
        ),
        (
            {
                "sasl_mechanism": "PLAIN",
                "sasl_username": "u",
                "sasl_jaas_config": f"{PLAIN} required password={SECRET};",
            },
            "set only one of them",
        ),
        (
            {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": 5},
            "sasl.password=(secret): must be a string",
        ),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": f"{SECRET}\0"}, "NUL"),
        ({"oauth_cb": print}, "sasl.oauthbearer.token.callback"),
    ],
)
def test_invalid_login_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(security_protocol="SASL_SSL", **settings)


def test_kerberos_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    assert "pip install 'headrace[kerberos]'" in refusal(security_protocol="SASL_SSL")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f'{PLAIN} required username="a" password="b c";', {"username": "a", "password": "b c"}),
        (f"{PLAIN} REQUIRED username='a' password='b\"c' ;", {"username": "a", "password": 'b"c'}),
        (f'\n  {PLAIN}\n required\n  username = a\n password="x\\"y\\\\z";\n', {"username": "a", "password": 'x"y\\z'}),
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required password="b\\101\\0\\7\\477";', {"password": "bA\0\7'7"}),
        (f'{PLAIN} required password="\\a\\b\\f\\n\\r\\t\\v\\q\\8";', {"password": "\a\b\f\n\r\t\vq8"}),
        (f'{PLAIN} required /* b="c" */ "password"="/b" // c\n / d\n;/*', {"password": "/b"}),
        (f"'{PLAIN}' \"required\" password=b-1.c_$é;", {"password": "b-1.c_$é"}),
    ],
)
def test_java_s_login_strings_are_parsed(text: str, found: dict[str, str]) -> None:
    login = parsed(sasl_jaas_config=text).sasl_jaas_config
    assert login is not None
    assert (login.module, dict(login.options)) == ("PlainLoginModule", found)
    assert "b" not in repr(login).replace("PlainLoginModule", "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f'password="{SECRET}', "cannot be parsed from"),
        (f'password="{SECRET}\n";', "cannot be parsed from"),  # in Java the end of the line ends the value
        (f"password=1{SECRET};", "start with a digit"),
        (f"password=/{SECRET};", "put values in quotes"),  # a remark
        (f"password={SECRET}@x;", "put values in quotes"),
        (f"password '{SECRET}';", "cannot be parsed from"),
        (f"='{SECRET}';", "cannot be parsed from"),
        (f"password='{SECRET}' password=x;", "password is given twice"),
        (f"password='{SECRET}'; a.B required;", "more than one login module"),
    ],
)
def test_invalid_login_strings_are_refused(options: str, said: str) -> None:
    assert said in refusal(sasl_jaas_config=f"{PLAIN} required {options}")


@pytest.mark.parametrize("package", ["", "secured."])
def test_java_s_login_callback_handler_needs_an_endpoint_url(package: str) -> None:
    name = f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    oauth = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    client = {"sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": SECRET}
    url = {"sasl_oauthbearer_token_endpoint_url": "https://x:8443/t?a=b"}
    parsed(**oauth, **client, **url, sasl_login_callback_handler_class=name)
    assert "endpoint.url" in refusal(**oauth, **client, sasl_login_callback_handler_class=name)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"https://me:{SECRET}@x/t", "without user and password"),
        (f"https://{SECRET}@x/t", "without user and password"),
        (f"https://x/t {SECRET}", "without blanks"),
        (f"https://x/t\n{SECRET}", "without blanks"),
        (f"https://x/ü{SECRET}", "without blanks"),
        (f"https://x:{SECRET}/t", "a port from 1 to 65535"),
        ("https://x:65536/t", "a port from 1 to 65535"),
        ("https://x:0/t", "a port from 1 to 65535"),
        (f"https:///{SECRET}", "with a host"),
        (f"https://[{SECRET}/t", "with a host"),
    ],
)
def test_an_invalid_token_endpoint_url_is_refused_without_showing_it(url: str, said: str) -> None:
    text = refusal(sasl_oauthbearer_token_endpoint_url=url)
    assert text.startswith("sasl.oauthbearer.token.endpoint.url=(secret): must be a URL ")
    assert said in text


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
def test_the_format_of_a_store_is_detected_by_its_content(tmp_path: Path, form: str) -> None:
    """Java accepts PKCS12 content in a store declared as JKS."""
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


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    own = {"ssl_certificate_location": write(tmp_path / "me.pem", OWN.certificates)}
    own |= {"ssl_key_location": write(tmp_path / "me.key", encrypted_key()), "security_protocol": "SSL"}
    parsed(**own, ssl_key_password=SECRET)
    assert "cannot be decrypted with its password" in refusal(**own, ssl_key_password="wrong")
    assert "ssl.certificate.location" in refusal(**own)


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    other = AUTHORITY.issue("other", client=True)
    own = write(tmp_path / "me.pem", OWN.certificates)
    wrong = write(tmp_path / "other.key", other.key)
    said = refusal(security_protocol="SSL", ssl_certificate_location=own, ssl_key_location=wrong)
    assert "the private key does not belong to the certificate" in said


@pytest.mark.parametrize("name", ["ssl_ca_location", "ssl_truststore_location", "ssl_keystore_location"])
def test_invalid_certificate_files_are_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\x02")
    said = refusal(security_protocol="SSL", **{name: str(jks)})
    assert "JKS" in said
    assert f"keytool -importkeystore -srckeystore {jks} -destkeystore {tmp_path / 'store.p12'}" in said
    assert "No such file" in refusal(security_protocol="SSL", **{name: str(tmp_path / "missing")})
    assert "neither PEM nor PKCS12" in refusal(security_protocol="SSL", **{name: write(tmp_path / "text", "hello")})
    broken = write(tmp_path / "broken.pem", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    assert "no readable certificate" in refusal(security_protocol="SSL", **{name: broken})
    (tmp_path / "damaged.p12").write_bytes(b"\x30\x82\x01\x00damaged")
    assert "damaged" in refusal(security_protocol="SSL", **{name: str(tmp_path / "damaged.p12")})


def test_a_store_with_a_wrong_password_or_none_is_refused(tmp_path: Path) -> None:
    store = {"security_protocol": "SSL", "ssl_keystore_location": pkcs12_file(tmp_path / "key.p12")}
    assert "cannot be opened with its password" in refusal(**store, ssl_keystore_password="wrong")
    assert "needs a password" in refusal(**store)


def test_pkcs12_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ({"ssl_ca_location": "a", "ssl_truststore_location": "b"}, "set only one of them"),
        ({"ssl_certificate_location": "a", "ssl_keystore_location": "b"}, "set only one of them"),
        ({"ssl_key_location": "a"}, "needs ssl.certificate.location"),
        ({"ssl_keystore_key": SECRET}, "needs ssl.keystore.certificate.chain"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "must be TLSv1.2, TLSv1.3 or both"),
        ({"ssl_endpoint_identification_algorithm": "ldaps"}, "must be https"),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_NULL_SHA"}, "names, which differ from Java's"),
        ({"ssl_truststore_type": "BKS"}, "must be PEM or PKCS12"),
        ({"ssl_engine_factory_class": "x"}, "headrace cannot run Java classes"),
    ],
)
def test_invalid_tls_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(security_protocol="SSL", **settings)


def test_security_settings_without_effect_and_plain_passwords_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    parsed(sasl_username="u", sasl_password=SECRET, ssl_ca_location="/no/such/file")
    assert "ssl.ca.location is set but has no effect with security.protocol=plaintext" in caplog.text
    assert "sasl.username is set" in caplog.text
    parsed(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="u", sasl_password=SECRET)
    assert "sends the password unencrypted over the network" in caplog.text
    assert SECRET not in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


# -- forms of PEM ----------------------------------------------------------------------------------------------------


def on_one_line(pem: str) -> str:
    return " ".join(pem.split("\n"))


@pytest.mark.parametrize("form", [on_one_line, lambda pem: f"# Autorité de Łódź\n{pem}\n# ende: größer\n"])
def test_pem_on_one_line_or_with_comments_is_accepted(tmp_path: Path, form: Callable[[str], str]) -> None:
    trust, both = form(AUTHORITY.pem), form(OWN.certificates + encrypted_key())
    for settings in (
        {"ssl_truststore_certificates": trust, "ssl_keystore_certificate_chain": both},
        {
            "ssl_ca_pem": trust,
            "ssl_certificate_pem": form(OWN.certificates),
            "ssl_key_pem": form(encrypted_key()),
        },
        {
            "ssl_truststore_location": write(tmp_path / "ca.pem", trust),
            "ssl_keystore_location": write(tmp_path / "me.pem", both),
        },
        {"ssl_ca_location": write(tmp_path / "ca.pem", trust)},
    ):
        found = parsed(security_protocol="SSL", ssl_key_password=SECRET, **settings)
        assert make_context(found).cert_store_stats()["x509_ca"] == 1


def test_pem_of_a_traditional_encrypted_key_is_accepted() -> None:
    key = serialization.load_pem_private_key(OWN.key.encode(), None)
    encryption = serialization.BestAvailableEncryption(SECRET.encode())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    old = key.private_bytes(pem, form, encryption).decode()
    assert "DEK-Info" in old
    own = {"ssl_keystore_certificate_chain": OWN.certificates, "ssl_keystore_key": f"größer\n{old}"}
    parsed(security_protocol="SSL", ssl_key_password=SECRET, **own)


def test_a_pem_file_renewed_on_disk_is_used_once_it_is_complete(tmp_path: Path) -> None:
    """A half-written file is ignored."""
    place, renewed = tmp_path / "ca.pem", on_one_line(AUTHORITY.pem + Authority().pem)
    contexts = TlsContexts(parsed(security_protocol="SSL", ssl_truststore_location=write(place, AUTHORITY.pem)))
    before = contexts.current()
    for torn in (renewed[:-20], renewed[: len(renewed) * 2 // 3], "é" + renewed[:-2]):
        write(place, torn)
        assert contexts.current() is before
    write(place, renewed)
    assert contexts.current().cert_store_stats()["x509_ca"] == 2


def test_a_private_key_beside_its_certificates_is_not_shown() -> None:
    found = parsed(security_protocol="SSL", ssl_certificate_pem=OWN.certificates + OWN.key)
    key = "".join(OWN.key.splitlines()[1:-1])
    assert key[:40] not in repr(found)
    assert "=(secret): " in refusal(ssl_keystore_certificate_chain=[SECRET])
    hidden = re.compile(REDACTED)
    for name in ("ssl.keystore.certificate.chain", "ssl.certificate.pem", "ssl.keystore.key", "sasl.jaas.config"):
        assert hidden.search(f"kafka.{name}")
    assert not hidden.search("kafka.ssl.certificate.location")
