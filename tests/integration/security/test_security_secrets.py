"""Passwords, tokens, client secrets and store passwords appear in no log, error, repr, metric or output."""

from __future__ import annotations

import json
import logging
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, ShareConsumer
from headrace.cli.connection_options import read_properties
from headrace.config.consumer import ConsumerConfig
from headrace.errors import HeadraceError
from headrace.local.background import Status
from support.brokers.secured import SecuredBroker, TokenServer, unsigned_token
from support.harness.consumers import poll_until
from support.harness.shell import headrace


@pytest.fixture(scope="module")
def topic(secured: SecuredBroker) -> str:
    return secured.create("secrets", 10)


def everything_of(error: BaseException) -> str:
    return "".join([repr(error), str(pickle.dumps(error)), *traceback.format_exception(error)])


def attempts(secured: SecuredBroker, tokens: TokenServer) -> list[tuple[str, dict[str, Any]]]:
    """Valid and invalid secrets, with settings that use them."""
    plain, scram = (secured.broker.config_of("admin", mechanism) for mechanism in ("PLAIN", "SCRAM-SHA-512"))
    token, wrong_token = unsigned_token("admin"), unsigned_token("nobody", -5)
    oauth = secured.oauth_config
    return [
        (plain["sasl.password"], plain),
        (scram["sasl.password"], scram),
        ("wr0ng-p4ss", plain | {"sasl.password": "wr0ng-p4ss"}),
        ("wr0ng-p4ss", scram | {"sasl.password": "wr0ng-p4ss"}),
        (token, oauth | {"sasl.oauthbearer.token.callback": lambda: token}),
        (wrong_token, oauth | {"sasl.oauthbearer.token.callback": lambda: wrong_token}),
        (tokens.SECRET, oauth | tokens.config),
        ("wr0ng-cl13nt", oauth | tokens.config | {"sasl.oauthbearer.client.secret": "wr0ng-cl13nt"}),
    ]


def test_a_consumer_shows_no_secret(
    secured: SecuredBroker,
    topic: str,
    token_server: TokenServer,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    right = 0
    for secret, settings in attempts(secured, token_server):
        shown: list[str] = [repr(ConsumerConfig.parse(settings)), str(ConsumerConfig.parse(settings))]
        with Consumer(settings, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.assign([(topic, 0)])
            try:
                poll_until(consumer, 10)
                right += 1
            except HeadraceError as error:
                shown.append(everything_of(error))
            shown += [repr(consumer), repr(consumer.__dict__), json.dumps(consumer.metrics(), default=str)]
        with ShareConsumer(settings, group_id="s") as sharing:
            sharing.subscribe([topic])
            try:
                sharing.poll(0.2)
            except HeadraceError as error:
                shown.append(everything_of(error))
            shown.append(repr(sharing))
        shown += [repr(vars(record)) + record.getMessage() for record in caplog.records]
        shown += capfd.readouterr()
        for text in shown:
            assert secret not in text
    assert right == 4
    assert len(caplog.records) > 10


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl.password": b"hush-hush-1"},
        {"sasl.jaas.config": 'PlainLoginModule required password="hush-hush-1"'},
        {"sasl.jaas.config": "x.y.Z required password=hush-hush-1;"},
        {"sasl.mechanism": "SCRAM-SHA-256", "sasl.password": "hush-hush-1"},
        {"ssl.keystore.location": "/no/such", "ssl.keystore.password": "hush-hush-1"},
        {"ssl.keystore.key": "hush-hush-1", "ssl.keystore.certificate.chain": "hush-hush-1"},
        {"ssl.key.password": 5, "ssl.truststore.password": "hush-hush-1"},
        {"sasl.oauthbearer.token.endpoint.url": "ftp://hush-hush-1@x"},
        {"sasl.oauthbearer.client.secret": ["hush-hush-1"]},
        {"sasl.pasword": "hush-hush-1"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_refused_settings_show_no_secret(settings: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError) as caught:
        Consumer({"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", **settings})
    assert "hush-hush-1" not in everything_of(caught.value).replace(repr(settings), "")


def test_the_local_broker_shows_no_secret(secured: SecuredBroker) -> None:
    broker = secured.broker
    secrets = [broker.client_config["sasl.password"], *(broker.config_of("reader")["sasl.password"],)]
    status = Status("running", broker.bootstrap_servers, client_properties=str(broker.client_properties))
    shown = [repr(broker), repr(vars(broker)), repr(status), status.to_json(), secured.log()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            shown.append(process.read_text(errors="replace"))
        except OSError:
            continue
    for text in shown:
        for secret in secrets:
            assert secret not in text
    for path in (broker.data_dir / "security").iterdir():
        assert path.name == "ca.pem" or path.stat().st_mode & 0o077 == 0, f"{path} can be read by others"
    for path in broker.data_dir.glob("broker-*/server.properties"):
        assert path.stat().st_mode & 0o077 == 0


def test_the_command_line_shows_no_secret(secured: SecuredBroker, topic: str, tmp_path: Path) -> None:
    """Every command works with the properties file of a secured cluster, and errors about it hide its contents."""
    right = secured.broker.client_properties
    text = right.read_text()
    password = secured.broker.client_config["sasl.password"]
    said = ""
    for command in (("topics",), ("produce", "-t", topic), ("tail", "-t", topic, "-o", "beginning", "-e"), ("groups",)):
        done = headrace(*command, "-F", str(right), stdin=b"from the shell\n")
        assert done.code == 0, (command, done.err)
        said += done.text + done.err
    assert "from the shell" in said
    wrong = tmp_path / "wrong.properties"
    for changed, code, why in (
        (text.replace(password, "wr0ng-again"), 1, "SASL authenticate"),
        (text.replace(";", ""), 2, "sasl.jaas.config=(secret)"),
        (text.replace("=org", " org").replace("ScramLogin", "PlainLogin"), 2, "does not match"),
        (text + f"\n{password}\n", 2, "is not of the form NAME=VALUE"),
        (text.replace("sasl.jaas.config=", ""), 2, "unknown setting org.apache.kafka"),
    ):
        wrong.write_text(changed)
        for command in (("topics",), ("tail", "-t", topic), ("lag", "-g", "g"), ("produce", "-t", topic)):
            done = headrace(*command, "-F", str(wrong))
            assert (done.code, done.out) == (code, b"")
            assert why in done.err or (command[0], why) == ("produce", "unknown setting org.apache.kafka")
            said += done.err
    done = headrace("topics", "-b", "b:1", "-C", f"sasl.password: {password}")
    assert "sasl.password is not of the form" in done.err
    said += done.err
    assert password not in said
    assert "wr0ng-again" not in said


def test_a_secured_cluster_from_the_command_line_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headrace up --secure` prints the path of the client settings, which other commands find. It prints no secret."""
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    said = ""

    def says(*args: str, stdin: bytes = b"") -> str:
        nonlocal said
        done = headrace(*args, stdin=stdin)
        assert done.code in (0, 3), done.err
        said += done.text + done.err
        return done.text

    try:
        shown = (
            says("up", "--secure", "--port", "0", "--ephemeral") + says("status") + says("status", "--format", "json")
        )
        where = next(line.split()[-1] for line in shown.splitlines() if line.startswith("client settings"))
        settings = read_properties(Path(where))
        with Consumer(settings) as consumer:
            assert consumer.list_topics() == {}
        says("produce", "-t", "greetings", "--create", stdin=b"hello\n")
        assert says("tail", "-t", "greetings", "-o", "beginning", "-e", "-C", "client.id=me") == "hello\n"
        password = re.findall(r'password="([^"]+)"', settings["sasl.jaas.config"])[0]
        assert password not in said
    finally:
        says("down")
