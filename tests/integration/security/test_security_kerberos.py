"""Kerberos logins with a real Kerberos server and broker. `brokers/kerberos.py` describes the requirements."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace._security.exchanges import Exchange, Rejected
from headrace._security.kerberos import kerberos_exchange
from headrace._security.settings import SecuritySettings
from headrace.cli.properties import parse_properties
from headrace.errors import AuthenticationError, AuthorizationError, ConfigError, RequestTimeoutError
from support.brokers.kerberos import LOGIN_MODULE, REALM, Kerberos, kerberized_broker, kerberos_server
from support.brokers.secured import SecuredBroker
from support.harness.consumers import MakeConsumer, poll_until
from support.harness.login_renewals import reads_on
from support.harness.waiting import wait_for

gssapi = pytest.importorskip("gssapi", reason="the package gssapi is not installed: pip install 'headrace[kerberos]'")
_DOCUMENTATION = Path(__file__).parents[3] / "docs" / "security.md"


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberos]:
    with kerberos_server(tmp_path_factory.mktemp("kerberos")) as server:
        yield server


@pytest.fixture(scope="module")
def secured(kerberos: Kerberos) -> Iterator[SecuredBroker]:
    with kerberized_broker(kerberos) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(secured: SecuredBroker) -> str:
    return secured.create("secured", 50)


@pytest.fixture
def config(secured: SecuredBroker) -> dict[str, Any]:
    """Settings without credentials."""
    return {
        "bootstrap.servers": secured.broker.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.broker.client_config["ssl.ca.location"],
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "auto.offset.reset": "earliest",
    }


Enter = Callable[[dict[str, str]], None]


@pytest.fixture(autouse=True)
def enter(kerberos: Kerberos, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Sets environment variables. Initially the environment has neither ticket nor key."""

    def change(values: dict[str, str]) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    change(kerberos.environment())
    return change


def reads(make: MakeConsumer, topic: str, config: dict[str, Any]) -> None:
    consumer = make(config)
    consumer.assign([(topic, 0)])
    assert [record.value for record in poll_until(consumer, 50)] == [b"%d" % number for number in range(50)]


def ticket_cache(kerberos: Kerberos) -> tuple[str, Any]:
    """A ticket cache of admin, like that of kinit, and its credentials."""
    cache = kerberos.file(".ccache")
    store = {"client_keytab": kerberos.keytab("admin"), "ccache": f"FILE:{cache}"}
    credentials = gssapi.Credentials(usage="initiate", store=store)
    assert credentials.lifetime > 0  # the library requests the ticket on this access
    return cache, credentials


def keytab_of_both(kerberos: Kerberos) -> str:
    """A keytab with guest, then admin."""
    first, second = (Path(kerberos.keytab(name)).read_bytes() for name in ("guest", "admin"))
    return kerberos.file(".keytab", first + second[2:])  # two bytes are the format version


# -- accepted --------------------------------------------------------------------------------------------------------


def test_kerberos_authenticates_with_a_keytab_of_the_environment(
    make: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], topic: str, enter: Enter
) -> None:
    enter({"KRB5_CLIENT_KTNAME": kerberos.keytab("admin")})
    reads(make, topic, config)


def test_kerberos_authenticates_with_a_ticket_of_the_environment(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], topic: str, enter: Enter
) -> None:
    enter({"KRB5CCNAME": f"FILE:{ticket_cache(kerberos)[0]}"})
    reads(make_sync, topic, config)


def test_kerberos_authenticates_with_librdkafka_s_settings(
    make: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], topic: str
) -> None:
    config |= {"sasl.kerberos.keytab": keytab_of_both(kerberos), "sasl.kerberos.principal": f"admin@{REALM}"}
    reads(make, topic, config)


def test_kerberos_authenticates_with_the_documented_settings(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], topic: str
) -> None:
    (text,) = re.findall(r"```ini\n(.*?)```", _DOCUMENTATION.read_text(), re.DOTALL)
    for documented, here in (
        ("broker1.example.com:9093", config["bootstrap.servers"]),
        ("/etc/kafka/ca.pem", config["ssl.ca.location"]),
        ("/etc/keytabs/billing.keytab", kerberos.keytab("admin")),
        ("billing@EXAMPLE.COM", f"admin@{REALM}"),
    ):
        assert documented in text
        text = text.replace(documented, here)
    reads(make_sync, topic, parse_properties(text) | {"auto.offset.reset": "earliest"})


@pytest.mark.parametrize("way", ["keytab", "ticket cache"])
def test_kerberos_authenticates_with_a_java_client_s_settings(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], topic: str, way: str
) -> None:
    options = {
        "keytab": f'useKeyTab=true storeKey=true keyTab="{keytab_of_both(kerberos)}" principal="admin@{REALM}"',
        "ticket cache": f'useTicketCache=true ticketCache="{ticket_cache(kerberos)[0]}"',
    }
    config["sasl.kerberos.service.name"] = "other"
    config["sasl.jaas.config"] = f'{LOGIN_MODULE} required {options[way]} serviceName="kafka";'
    reads(make_sync, topic, config)


def test_the_first_principal_of_a_keytab_logs_in_unless_one_is_named(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], topic: str
) -> None:
    """The first is guest, who has no permissions."""
    consumer = make_sync(config | {"sasl.kerberos.keytab": keytab_of_both(kerberos)})
    consumer.assign([(topic, 0)])
    with pytest.raises(AuthorizationError, match=topic):
        poll_until(consumer, 1)


def test_kerberos_logins_and_tickets_are_renewed_before_they_expire(
    make_async: MakeConsumer,
    kerberos: Kerberos,
    config: dict[str, Any],
    steady: tuple[str, list[int]],
    caplog: pytest.LogCaptureFixture,
    enter: Enter,
) -> None:
    """Tickets that usually last a day expire between two logins here."""
    enter({"KRB5_CONFIG": kerberos.settings("ticket_lifetime = 2s")})
    del config["auto.offset.reset"]
    # A separate file, since tickets are cached by keytab.
    keytab = kerberos.file(".keytab", Path(kerberos.keytab("admin")).read_bytes())
    reads_on(make_async, config | {"sasl.kerberos.keytab": keytab}, steady, caplog)


# -- rejected --------------------------------------------------------------------------------------------------------


def refusal(make: MakeConsumer, config: dict[str, Any]) -> str:
    with pytest.raises(AuthenticationError) as caught:
        make(config).list_topics(timeout=60)
    assert caught.value.step == "ticket"
    return str(caught.value)


def test_without_a_kerberos_ticket_the_error_says_what_to_do(make: MakeConsumer, config: dict[str, Any]) -> None:
    said = refusal(make, config)
    assert "cannot get a Kerberos ticket for kafka/127.0.0.1: No Kerberos credentials available" in said
    assert "run kinit, or set a keytab" in said


def test_an_expired_kerberos_ticket_is_refused(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], enter: Enter
) -> None:
    enter({"KRB5_CONFIG": kerberos.settings("ticket_lifetime = 1s")})
    cache, ticket = ticket_cache(kerberos)
    wait_for("the ticket's end", lambda: time.time() > ends_at(ticket))
    enter({"KRB5CCNAME": f"FILE:{cache}"})
    assert "the ticket has expired: run kinit" in refusal(make_sync, config)


def ends_at(ticket: Any) -> float:
    try:
        return time.time() + ticket.lifetime
    except gssapi.exceptions.ExpiredCredentialsError:
        return 0.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.kerberos.service.name": "other"}, "other/127.0.0.1: .*see sasl.kerberos.service.name"),
        ({"sasl.kerberos.principal": f"guest@{REALM}"}, "the keytab has no key for this user"),
    ],
)
def test_the_error_names_a_wrong_kerberos_principal_or_service_name(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], settings: dict[str, str], said: str
) -> None:
    config |= {"sasl.kerberos.keytab": kerberos.keytab("admin"), **settings}
    with pytest.raises(AuthenticationError, match=said):
        make_sync(config).list_topics(timeout=60)


@pytest.mark.parametrize(
    ("name", "said"), [(b"admin", "wrong or outdated for this user"), (b"nobod", "does not know this user")]
)
def test_a_wrong_kerberos_key_is_refused(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any], name: bytes, said: str
) -> None:
    forged = Path(kerberos.keytab("guest")).read_bytes().replace(b"guest", name)
    config["sasl.kerberos.keytab"] = kerberos.file(".keytab", forged)
    assert said in refusal(make_sync, config)


def test_a_keytab_that_does_not_exist_is_refused_at_once(
    make_sync: MakeConsumer, kerberos: Kerberos, config: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.kerberos\.keytab=.*: No such file"):
        make_sync(config | {"sasl.kerberos.keytab": kerberos.file(".keytab")})


def test_an_unreachable_kerberos_server_is_logged_and_retried(
    make: MakeConsumer,
    kerberos: Kerberos,
    config: dict[str, Any],
    topic: str,
    enter: Enter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The login is retried in the background, and calls end at their timeout."""
    caplog.set_level(logging.INFO, "headrace")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        enter({"KRB5_CLIENT_KTNAME": kerberos.keytab("admin")})
        enter({"KRB5_CONFIG": kerberos.settings(port=silent.getsockname()[1])})
        consumer = make(config)
        began = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            consumer.list_topics(timeout=0.5)
        assert time.monotonic() - began < 25, "default.api.timeout.ms is a minute"
    consumer.assign([(topic, 0)])
    wait_for("the log line", lambda: not consumer.poll(0.1) and "Cannot contact any KDC" in caplog.text)
    enter({"KRB5_CONFIG": kerberos.settings()})
    assert len(poll_until(consumer, 50)) == 50


# -- exchanges with a broker -----------------------------------------------------------------------------------------


def exchange_with(kerberos: Kerberos) -> tuple[Exchange, Any]:
    """The client's side of a login as admin, and the broker's side, played by the same library."""
    store = {"keytab": kerberos.keytab("kafka/127.0.0.1")}
    begin = kerberos_exchange(SecuritySettings(sasl_kerberos_keytab=kerberos.keytab("admin")))
    broker = gssapi.SecurityContext(creds=gssapi.Credentials(usage="accept", store=store), usage="accept")
    return asyncio.run(begin("127.0.0.1")), broker


@pytest.mark.parametrize("offered", [b"\1\0\0\0", b"\7\0\0\x40"])
def test_kerberos_negotiates_no_security_layer(kerberos: Kerberos, offered: bytes) -> None:
    ours, broker = exchange_with(kerberos)
    assert ours.answer(broker.step(ours.first())) == b""
    assert broker.unwrap(ours.answer(broker.wrap(offered, False).message)).message == b"\1\0\0\0"
    assert ours.answer(b"") is None


@pytest.mark.parametrize("offered", [b"\6\0\0\x40", b"\1", b""])
def test_a_broker_that_requires_a_kerberos_security_layer_is_refused(kerberos: Kerberos, offered: bytes) -> None:
    ours, broker = exchange_with(kerberos)
    ours.answer(broker.step(ours.first()))
    with pytest.raises(Rejected, match="requires a security layer"):
        ours.answer(broker.wrap(offered, False).message)


def test_a_server_that_cannot_prove_its_kerberos_identity_is_refused(kerberos: Kerberos) -> None:
    ours, broker = exchange_with(kerberos)
    proof = broker.step(ours.first())
    with pytest.raises(Rejected, match="did not prove that the ticket is meant for it"):
        ours.answer(proof[:-1] + bytes([proof[-1] ^ 1]))
    ours, broker = exchange_with(kerberos)
    ours.answer(broker.step(ours.first()))
    with pytest.raises(Rejected, match="did not prove that the ticket is meant for it"):
        ours.answer(b"\1\0\0\0")
