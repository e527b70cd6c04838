"""Every way to log in to a secured cluster, with valid and invalid credentials."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import OAuthToken, ShareConsumer
from headrace.cli.connection_options import read_properties
from headrace.errors import AuthenticationError, HeadraceError
from headrace.local.certificates import Authority
from support.brokers.admin import unique
from support.brokers.secured import PASSWORDS, SecuredBroker, TokenServer, unsigned_token
from support.harness.consumers import AnyConsumer, MakeConsumer, poll_until
from support.harness.run_kinds import until
from support.harness.waiting import wait_for

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def topic(secured: SecuredBroker) -> str:
    return secured.create("secured", 50)


def reads(make: MakeConsumer, topic: str, config: dict[str, Any]) -> None:
    consumer = make(config, auto_offset_reset="earliest")
    consumer.assign([(topic, 0)])
    assert [record.value for record in poll_until(consumer, 50)] == [b"%d" % number for number in range(50)]


def refusal(call: Callable[[], object]) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as caught:
        call()
    return caught.value


def what_it_tries_again(consumer: AnyConsumer, said: str) -> str:
    """The error of a call that times out. On a busy machine the first attempt may take longer than a second."""
    for timeout in (1, 5, 30):
        with pytest.raises(HeadraceError) as caught:
            consumer.list_topics(timeout=timeout)
        if said in str(caught.value):
            break
    return str(caught.value)


# -- accepted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_each_sasl_mechanism_authenticates_with_a_password(
    make: MakeConsumer, secured: SecuredBroker, topic: str, mechanism: str
) -> None:
    reads(make, topic, secured.broker.config_of("admin", mechanism))


def test_mutual_tls_authenticates_with_a_client_certificate(
    make: MakeConsumer, secured: SecuredBroker, topic: str
) -> None:
    reads(make, topic, secured.broker.mutual_config)


def test_a_java_client_s_settings_authenticate(make_sync: MakeConsumer, secured: SecuredBroker, topic: str) -> None:
    config = read_properties(secured.broker.client_properties)
    assert "ScramLoginModule" in config["sasl.jaas.config"]
    reads(make_sync, topic, config)


def test_a_password_with_every_special_character_authenticates(make_sync: MakeConsumer, secured: SecuredBroker) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        consumer = make_sync(secured.broker.config_of("reader", mechanism))
        consumer.list_topics(timeout=60)
    quoted = PASSWORDS["reader"].replace("\\", "\\\\").replace('"', '\\"')
    config = secured.broker.config_of("reader")
    del config["sasl.username"], config["sasl.password"]
    login = f'{_SCRAM} required username="reader" password="{quoted}";'
    make_sync(config, sasl_jaas_config=login).list_topics(timeout=60)


def test_pkcs12_stores_authenticate(
    make_sync: MakeConsumer, secured: SecuredBroker, topic: str, tmp_path: Path
) -> None:
    """The usual configuration of Spark's connector for mutual TLS."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    config = secured.broker.mutual_config
    pem = Path(config["ssl.certificate.location"]).read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    own, *others = x509.load_pem_x509_certificates(pem)
    encryption = serialization.BestAvailableEncryption(b"store pass")
    keystore = pkcs12.serialize_key_and_certificates(b"me", key, own, others, encryption)  # type: ignore[arg-type]
    truststore = pkcs12.serialize_key_and_certificates(None, None, None, others, encryption)
    (tmp_path / "key.p12").write_bytes(keystore)
    (tmp_path / "trust.jks").write_bytes(truststore)  # Java uses this name for PKCS12, too
    reads(
        make_sync,
        topic,
        {
            "bootstrap.servers": config["bootstrap.servers"],
            "security.protocol": "SSL",
            "ssl.keystore.location": str(tmp_path / "key.p12"),
            "ssl.keystore.password": "store pass",
            "ssl.keystore.type": "PKCS12",
            "ssl.truststore.location": str(tmp_path / "trust.jks"),
            "ssl.truststore.password": "store pass",
        },
    )


def test_a_token_of_the_user_s_function_authenticates(make: MakeConsumer, secured: SecuredBroker, topic: str) -> None:
    reads(make, topic, secured.oauth_config | {"sasl.oauthbearer.token.callback": lambda: unsigned_token("admin")})


def test_a_token_of_a_coroutine_authenticates(make_async: MakeConsumer, secured: SecuredBroker, topic: str) -> None:
    async def token() -> OAuthToken:
        return OAuthToken(unsigned_token("admin"), time.time() + 60, {"traceId": "123"})

    reads(make_async, topic, secured.oauth_config | {"sasl.oauthbearer.token.callback": token})


def test_one_token_of_an_endpoint_authenticates_all_connections(
    make: MakeConsumer, secured: SecuredBroker, topic: str, token_server: TokenServer
) -> None:
    reads(make, topic, secured.oauth_config | token_server.config)
    assert token_server.asked == [{"grant_type": "client_credentials", "scope": "kafka"}], (
        "one token for all connections"
    )


def test_a_java_client_s_settings_of_a_token_endpoint_authenticate(
    make_sync: MakeConsumer, secured: SecuredBroker, topic: str, token_server: TokenServer
) -> None:
    login = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="{token_server.CLIENT}" clientSecret="{token_server.SECRET}" scope="kafka" extension_traceId="7";'
    )
    config = secured.oauth_config | {
        "sasl.oauthbearer.token.endpoint.url": token_server.url,
        "sasl.jaas.config": login,
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
    }
    reads(make_sync, topic, config)
    assert token_server.asked == [{"grant_type": "client_credentials", "scope": "kafka"}]
    token_server.wants_urlencoded = True
    reads(make_sync, topic, config | {"sasl.oauthbearer.header.urlencode": "true"})


def test_a_share_consumer_authenticates(secured: SecuredBroker) -> None:
    topic = secured.create("shared")
    with ShareConsumer(secured.broker.client_config, group_id=unique("shares")) as consumer:
        consumer.subscribe([topic])
        producer, deadline = secured.producer(), time.monotonic() + 60
        values: list[bytes | None] = []
        while not values and time.monotonic() < deadline:  # the group starts at the log end of its creation
            producer.produce(topic, b"shared")
            producer.flush(60)
            values = [record.value for record in consumer.poll(0.5)]
        assert set(values) == {b"shared"}


@pytest.mark.parametrize("way", ["password", "certificate", "token"])
def test_dead_letters_are_written_with_the_consumer_s_login(
    make_sync: MakeConsumer, secured: SecuredBroker, way: str
) -> None:
    """Another client writes them, with the login of the consumer."""
    topic, letters = secured.create("orders", 1), secured.create("failed")
    configs = {
        "password": read_properties(secured.broker.client_properties),
        "certificate": secured.broker.mutual_config,
        "token": secured.oauth_config | {"sasl.oauthbearer.token.callback": lambda: unsigned_token("admin")},
    }
    consumer = make_sync(configs[way], group_id=unique("billing"), commit_mode="done", auto_offset_reset="earliest")
    consumer.subscribe([topic])

    def fail(_: Any) -> None:
        raise ValueError("no such customer")

    consumer.run(fail, retries=0, dead_letter=letters, **until(consumer, lambda it: it.dead_lettered > 0))
    reader = make_sync(secured.broker.mutual_config, auto_offset_reset="earliest")
    reader.assign([(letters, 0)])
    (letter,) = poll_until(reader, 1)
    assert (letter.value, dict(letter.headers)["headrace.dlt.topic"]) == (b"0", topic.encode())


# -- rejected --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_sent_once_and_fails_every_call(
    make: MakeConsumer, secured: SecuredBroker, topic: str, mechanism: str
) -> None:
    before = secured.log().count("Failed authentication")
    config = secured.broker.config_of("admin", mechanism) | {"sasl.password": "not-the-one-9"}
    consumer = make(config, group_id="g", default_api_timeout_ms=60_000)
    consumer.assign([(topic, 0)])
    began = time.monotonic()
    error = refusal(lambda: [consumer.poll(20) for _ in range(3)])
    assert time.monotonic() - began < 30
    assert (error.step, error.retriable) == ("authenticate", False)
    assert f"SASL authenticate with {mechanism} at {secured.broker.bootstrap_servers} failed" in str(error)
    assert "not-the-one-9" not in str(error)
    for call in (
        lambda: consumer.poll(1),
        lambda: consumer.list_topics(),
        lambda: consumer.committed([(topic, 0)]),
        lambda: consumer.end_offsets([(topic, 0)]),
        lambda: consumer.commit({(topic, 0): 1}),
    ):
        assert refusal(call).step == "authenticate"
    wait_for("the broker's log line", lambda: secured.log().count("Failed authentication") > before)
    assert secured.log().count("Failed authentication") - before == 1


def test_a_group_s_member_with_a_wrong_password_is_refused(
    make: MakeConsumer, secured: SecuredBroker, topic: str
) -> None:
    consumer = make(secured.broker.config_of("admin") | {"sasl.password": "wrong"}, group_id="members")
    consumer.subscribe([topic])
    assert refusal(lambda: [consumer.poll(20) for _ in range(3)]).step == "authenticate"


def test_a_share_consumer_with_a_wrong_password_is_refused(secured: SecuredBroker, topic: str) -> None:
    config = secured.broker.config_of("admin") | {"sasl.password": "wrong"}
    with ShareConsumer(config, group_id="shares") as consumer:
        consumer.subscribe([topic])
        assert refusal(lambda: [consumer.poll(20) for _ in range(3)]).step == "authenticate"


def test_a_token_that_has_expired_is_refused(make: MakeConsumer, secured: SecuredBroker) -> None:
    consumer = make(secured.oauth_config, sasl_oauthbearer_token_callback=lambda: unsigned_token("admin", -10))
    error = refusal(lambda: consumer.list_topics(timeout=60))
    assert (error.step, str(error)) == ("token", "the new token has already expired")


def test_a_token_that_the_broker_rejects_raises_authentication_error(
    make: MakeConsumer, secured: SecuredBroker
) -> None:
    consumer = make(secured.oauth_config, sasl_oauthbearer_token_callback=lambda: "opaque-token-1234")
    error = refusal(lambda: consumer.list_topics(timeout=60))
    assert error.step == "authenticate"
    assert "opaque-token-1234" not in str(error)


def test_an_error_of_a_token_function_is_the_cause_of_the_raised_error(
    make: MakeConsumer, secured: SecuredBroker
) -> None:
    def token() -> str:
        raise LookupError("vault is sealed")

    consumer = make(secured.oauth_config, sasl_oauthbearer_token_callback=token)
    error = refusal(lambda: consumer.list_topics(timeout=60))
    assert (error.step, isinstance(error.__cause__, LookupError)) == ("token", True)


def test_a_token_function_that_raises_a_transient_error_is_retried(
    make: MakeConsumer, secured: SecuredBroker, topic: str
) -> None:
    failures = [ConnectionError("vault is restarting"), TimeoutError("vault is busy")]

    def token() -> str:
        if failures:
            raise failures.pop()
        return unsigned_token("admin")

    reads(make, topic, secured.oauth_config | {"sasl.oauthbearer.token.callback": token})


def test_a_token_function_that_calls_sys_exit_raises_authentication_error(
    make: MakeConsumer, secured: SecuredBroker
) -> None:
    """It must neither end the event loop nor make close() hang, which the fixture calls."""
    consumer = make(secured.oauth_config, sasl_oauthbearer_token_callback=lambda: sys.exit(3))
    error = refusal(lambda: consumer.list_topics(timeout=60))
    assert (error.step, str(error)) == ("token", "sasl.oauthbearer.token.callback failed: SystemExit")


def test_a_rejection_by_the_token_endpoint_raises_its_answer(
    make: MakeConsumer, secured: SecuredBroker, token_server: TokenServer
) -> None:
    config = secured.oauth_config | token_server.config | {"sasl.oauthbearer.client.secret": "wrong-one-5"}
    error = refusal(lambda: make(config).list_topics(timeout=60))
    assert error.step == "token"
    assert f"{token_server.url} answered 401: invalid_client" in str(error)
    assert len(token_server.asked) == 1


def test_a_token_endpoint_that_answers_503_is_retried(
    make_sync: MakeConsumer, secured: SecuredBroker, token_server: TokenServer, topic: str
) -> None:
    token_server.answers = [(503, b"busy")] * 2
    reads(make_sync, topic, secured.oauth_config | token_server.config)
    assert len(token_server.asked) == 3


def test_the_client_secret_is_not_sent_to_a_redirect(
    make_sync: MakeConsumer, secured: SecuredBroker, token_server: TokenServer
) -> None:
    token_server.answers = [(302, token_server.url.encode())]
    error = refusal(lambda: make_sync(secured.oauth_config | token_server.config).list_topics(timeout=60))
    assert (error.step, len(token_server.asked)) == ("token", 1)


def test_a_broker_with_an_unknown_ca_is_refused(
    make: MakeConsumer, secured: SecuredBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text(Authority().pem)
    consumer = make(secured.broker.client_config | {"ssl.ca.location": str(tmp_path / "ca.pem")})
    error = refusal(lambda: consumer.list_topics(timeout=60))
    assert error.step == "tls"
    assert "ssl.ca.location" in str(error)
    consumer.assign([(topic, 0)])
    assert refusal(lambda: [consumer.poll(20) for _ in range(3)]).step == "tls"


@pytest.mark.parametrize("kind", ["none", "of another CA", "expired"])
def test_a_client_certificate_that_the_broker_rejects_raises_authentication_error(
    make_sync: MakeConsumer, secured: SecuredBroker, tmp_path: Path, kind: str
) -> None:
    config = secured.broker.mutual_config
    del config["ssl.certificate.location"], config["ssl.key.location"]
    if kind != "none":
        lifetime = datetime.timedelta(days=-1 if kind == "expired" else 1)
        made = Authority().issue("intruder", client=True, valid_for=lifetime)
        (tmp_path / "client.pem").write_text(made.certificates + made.key)
        config["ssl.certificate.location"] = str(tmp_path / "client.pem")
    with pytest.raises(HeadraceError) as caught:
        make_sync(config).list_topics(timeout=60)
    assert isinstance(caught.value, AuthenticationError), caught.value
    assert "certificate" in str(caught.value)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("PLAINTEXT", "seems to expect TLS: set security.protocol=SSL"),
        ("SASL_PLAINTEXT", "seems to expect TLS: set security.protocol=SASL_SSL"),
        ("SSL", "it may expect a login (see security.protocol)"),
    ],
)
def test_the_error_of_a_wrong_security_protocol_says_which_one_to_set(
    make_sync: MakeConsumer, secured: SecuredBroker, protocol: str, said: str
) -> None:
    consumer = make_sync(secured.broker.client_config | {"security.protocol": protocol})
    assert said in what_it_tries_again(consumer, said)


def test_the_error_of_tls_at_a_plaintext_port_names_tls(
    make_sync: MakeConsumer, servers: str, secured: SecuredBroker
) -> None:
    consumer = make_sync(secured.broker.client_config | {"bootstrap.servers": servers})
    assert "TLS" in what_it_tries_again(consumer, "TLS")


def test_a_login_at_a_port_without_sasl_raises_authentication_error(
    make_sync: MakeConsumer, servers: str, secured: SecuredBroker
) -> None:
    config = secured.broker.client_config | {"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT"}
    error = refusal(lambda: make_sync(config).list_topics(timeout=60))
    assert (error.step, "security.protocol" in str(error)) == ("handshake", True)
