"""What the settings of security are for librdkafka. That it gets in with them is tested with a broker."""

from __future__ import annotations

import base64
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace import OAuthToken
from headrace._security.librdkafka import librdkafka_settings
from headrace.config.consumer import ConsumerConfig
from headrace.errors import ConfigError
from headrace.local.certificates import Authority
from support.brokers.fake_tls_broker import write

AUTHORITY = Authority()
OWN = AUTHORITY.issue("me", client=True)
TLS = {"ssl.endpoint.identification.algorithm": "https", "enable.ssl.certificate.verification": True}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def translated(**settings: Any) -> dict[str, Any]:
    return librdkafka_settings(ConsumerConfig.parse({"bootstrap.servers": "b:1"}, **settings))


def test_plaintext_needs_no_settings_of_librdkafka() -> None:
    assert translated() == {"security.protocol": "plaintext"}


@pytest.mark.parametrize(
    "login",
    [
        {"sasl_username": "u", "sasl_password": 'p"\\'},
        {"sasl_jaas_config": f'{SCRAM} required username="u" password="p\\"\\\\";'},
    ],
)
def test_a_user_is_translated_for_librdkafka(login: dict[str, str]) -> None:
    assert translated(security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", **login) == {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": 'p"\\',
    }


def test_certificates_are_translated_for_librdkafka(tmp_path: Path) -> None:
    ca = write(tmp_path / "ca.pem", AUTHORITY.pem)
    both = write(tmp_path / "both.pem", OWN.certificates + OWN.key)
    expected = {"security.protocol": "ssl", **TLS, "ssl.ca.location": ca}
    assert translated(security_protocol="SSL", ssl_ca_location=ca) == expected
    assert translated(security_protocol="SSL", ssl_truststore_location=ca) == expected
    mutual = expected | {"ssl.certificate.location": both, "ssl.key.location": both}
    assert translated(security_protocol="SSL", ssl_ca_location=ca, ssl_certificate_location=both) == mutual
    assert translated(security_protocol="SSL", ssl_ca_location=ca, ssl_keystore_location=both) == mutual
    texts = {"ssl_truststore_certificates": AUTHORITY.pem, "ssl_keystore_certificate_chain": OWN.certificates}
    found = translated(security_protocol="SSL", **texts, ssl_keystore_key=OWN.key)
    assert (found["ssl.ca.pem"], found["ssl.certificate.pem"]) == (AUTHORITY.pem.strip(), OWN.certificates.strip())
    assert found["ssl.key.pem"] == OWN.key.strip()
    lax = translated(security_protocol="SSL", ssl_endpoint_identification_algorithm="")
    assert lax["ssl.endpoint.identification.algorithm"] == "none"


def test_pkcs12_stores_are_translated_for_librdkafka(tmp_path: Path) -> None:
    pem = (OWN.certificates + OWN.key).encode()
    key = serialization.load_pem_private_key(pem, None)
    own, *others = x509.load_pem_x509_certificates(pem)
    how = serialization.BestAvailableEncryption(b"pass")
    place = tmp_path / "store.p12"
    place.write_bytes(pkcs12.serialize_key_and_certificates(b"me", key, own, others, how))  # type: ignore[arg-type]
    store = {"ssl_keystore_location": str(place), "ssl_keystore_password": "pass"}
    trust = {"ssl_truststore_location": str(place), "ssl_truststore_password": "pass"}
    found = translated(security_protocol="SSL", **store, **trust)
    assert (found["ssl.keystore.location"], found["ssl.keystore.password"]) == (str(place), "pass")
    assert found["ssl.ca.pem"].count("BEGIN CERTIFICATE") == 1 + len(others)


def test_tokens_are_translated_for_librdkafka() -> None:
    made = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({}, {"exp": 5e9}, {}))

    async def soon() -> OAuthToken:
        return OAuthToken("opaque", 4e9, {"traceId": "1"})

    oauth = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    found = translated(**oauth, sasl_oauthbearer_token_callback=lambda: made)
    assert found.pop("oauth_cb")("") == (made, 5e9, "", {})
    assert found == {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}
    assert translated(**oauth, sasl_oauthbearer_token_callback=soon)["oauth_cb"]("") == (
        "opaque",
        4e9,
        "",
        {"traceId": "1"},
    )


def test_kerberos_is_translated_for_librdkafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", types.ModuleType("gssapi"))  # not called before a login
    keytab = tmp_path / "me.keytab"
    keytab.touch()
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}
    login = f'a.Krb5LoginModule required useKeyTab=true keyTab="{keytab}" principal="me@X" serviceName=brokers;'
    expected = {"keytab": str(keytab), "principal": "me@X", "service.name": "brokers"}
    for found in (
        translated(**sasl, sasl_jaas_config=login),
        translated(**sasl, **{f"sasl_kerberos_{name.replace('.', '_')}": value for name, value in expected.items()}),
    ):
        assert {name.removeprefix("sasl.kerberos."): value for name, value in found.items()} == {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "GSSAPI",
            **expected,
        }
    with pytest.raises(ConfigError, match="ticketCache"):
        translated(**sasl, sasl_jaas_config="a.Krb5LoginModule required useTicketCache=true ticketCache='/tmp/it';")


def test_settings_that_librdkafka_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols"):
        translated(security_protocol="SSL", ssl_enabled_protocols="TLSv1.3")
