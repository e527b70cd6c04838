"""Secrets are in no log, error, repr, metric or output. Passwords of users, tokens, secrets of clients, of stores."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, ShareConsumer
from headrace.config import ConsumerConfig
from headrace.errors import HeadraceError
from headrace.local.background import Status
from support.consumers import poll_until
from support.secure import SecuredBroker, TokenServer, unsigned_token


@pytest.fixture(scope="module")
def topic(secured: SecuredBroker) -> str:
    return secured.create("secrets", 10)


def everything_of(error: BaseException) -> str:
    return "".join([repr(error), str(pickle.dumps(error)), *traceback.format_exception(error)])


def attempts(secured: SecuredBroker, tokens: TokenServer) -> list[tuple[str, dict[str, Any]]]:
    """Secrets, and settings with which they are used: rightly, and wrongly."""
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


def test_what_a_consumer_says(
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
                poll_until(consumer, 10, timeout=10)
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
def test_settings_that_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError) as caught:
        Consumer({"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", **settings})
    assert "hush-hush-1" not in everything_of(caught.value).replace(repr(settings), "")


def test_what_the_local_broker_shows(secured: SecuredBroker) -> None:
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


def test_what_the_command_line_shows(secured: SecuredBroker) -> None:
    """A mistake in a settings file is told without the line that it stands in."""
    program = (
        "import sys\nfrom headrace import Consumer\n"
        "Consumer(dict(line.strip().split('=', 1) for line in open(sys.argv[1]))).list_topics(timeout=5)\n"
    )
    wrong = secured.broker.data_dir / "wrong.properties"
    text = secured.broker.client_properties.read_text()
    password = secured.broker.client_config["sasl.password"]
    for changed, said in (
        (text.replace(password, "wr0ng-again"), "SASL authenticate"),
        (text.replace(";", ""), "sasl.jaas"),
    ):
        wrong.write_text(changed)
        done = subprocess.run(
            [sys.executable, "-c", program, str(wrong)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert "wr0ng-again" not in done.stdout + done.stderr
        assert password not in done.stdout + done.stderr
    wrong.unlink()


def test_a_cluster_from_the_command_line(tmp_path: Path) -> None:
    """`headrace up --secure` says where a client's settings are, and what is there works; none of it is printed."""
    environment = os.environ | {"HEADRACE_DATA": str(tmp_path)}

    def headrace(*args: str) -> str:
        command = [sys.executable, "-m", "headrace", *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode in (0, 3), done.stderr
        return done.stdout + done.stderr

    try:
        said = headrace("up", "--secure", "--port", "0", "--ephemeral")
        said += headrace("status") + headrace("status", "--format", "json")
        where = next(line.split()[-1] for line in said.splitlines() if line.startswith("client settings"))
        settings = dict(line.split("=", 1) for line in Path(where).read_text().splitlines())
        with Consumer(settings) as consumer:
            assert consumer.list_topics() == {}
        password = re.findall(r'password="([^"]+)"', settings["sasl.jaas.config"])[0]
        assert password not in said
    finally:
        headrace("down")
