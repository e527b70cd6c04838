"""sasl.mechanism=AWS_MSK_IAM: its tokens are those of AWS's own signer, and a broker gets them as OAUTHBEARER."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace._net.connection import Connection
from headrace._protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace._security.access import Access
from headrace._security.exchanges import Exchange
from headrace.config.consumer import ConsumerConfig
from headrace.errors import AuthenticationError, ConfigError, HeadraceError, NetworkError
from headrace.spark.options.source import SourceOptions
from support.brokers.fake_broker import FakeBroker, answer, run
from support.brokers.fake_connections import config

pytest.importorskip("botocore")

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
MSK = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}
HOST = "b-1.mycluster.abc123.c2.kafka.eu-central-1.amazonaws.com"
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"
CLOCK = datetime.datetime(2026, 11, 17, 22, 30, 5, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only these credentials, and no files or servers of this machine."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def access(**settings: Any) -> Access:
    return Access(config(**{**MSK, **settings}))


def begun(host: str = HOST, **settings: Any) -> Exchange:
    return asyncio.run(access(**settings).exchange(host))


def signed_url(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def parameters(token: str) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(signed_url(token)).query))


@pytest.mark.parametrize("session_token", [None, "IQoJb3JpZ2luX2VjE/with+odd=characters"])
def test_a_token_is_the_one_of_the_official_signer(monkeypatch: pytest.MonkeyPatch, session_token: str | None) -> None:
    """With the same clock and credentials, only the unsigned User-Agent differs."""
    official = pytest.importorskip("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: CLOCK)
    if session_token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session_token)
    theirs, _ = official.generate_auth_token("eu-central-1")
    ours = begun().secret
    assert parameters(ours).pop("User-Agent").startswith("headrace/")
    agent = urllib.parse.quote(official.__get_user_agent__(), safe="")
    assert signed_url(ours).rpartition("&User-Agent=")[0] + f"&User-Agent={agent}" == signed_url(theirs)
    assert parameters(ours)["X-Amz-Date"] == "20261117T223005Z"
    assert parameters(ours).get("X-Amz-Security-Token") == session_token


def test_a_broker_gets_the_token_as_oauthbearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")

    async def main() -> None:
        async with FakeBroker() as broker:
            settings = config(**{**MSK, "security_protocol": "SASL_PLAINTEXT"})
            task = asyncio.create_task(Connection.open(broker.host, broker.port, settings, 30.0))
            link = await broker.accept()
            await link.negotiate()
            request = await link.receive()
            assert (request.api_key, request.body.mechanism) == (SASL_HANDSHAKE.key, "OAUTHBEARER")
            offered = ("AWS_MSK_IAM", "OAUTHBEARER")
            await link.reply(request, answer(SASL_HANDSHAKE, 1, error_code=0, mechanisms=offered))
            request = await link.receive()
            start, end = b"n,,\x01auth=Bearer ", b"\x01\x01"
            said = request.body.auth_bytes
            assert said.startswith(start)
            assert said.endswith(end)
            token = said.removeprefix(start).removesuffix(end).decode()
            assert signed_url(token).startswith(
                "https://kafka.eu-west-3.amazonaws.com/?Action=kafka-cluster%3AConnect&"
            )
            assert parameters(token)["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
            lifetime = datetime.timedelta(0)
            fields = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": lifetime}
            await link.reply(request, answer(SASL_AUTHENTICATE, request.version, **fields))
            (await task).close()

    run(main())


@pytest.mark.parametrize(
    ("host", "region"),
    [
        (HOST, "eu-central-1"),
        ("boot-xyz.c3.kafka-serverless.us-east-1.amazonaws.com", "us-east-1"),
        ("b-2-public.c.kafka.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("b-1.c.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kafka.example.com", "ap-south-1"),
    ],
)
def test_the_region_is_the_one_of_the_host_name_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, host: str, region: str
) -> None:
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert parameters(begun(host).secret)["X-Amz-Credential"].split("/")[2:] == [
        region,
        "kafka-cluster",
        "aws4_request",
    ]


def test_without_a_region_the_error_says_what_to_set() -> None:
    with pytest.raises(AuthenticationError, match=r"the AWS region of kafka\.example\.com: set .* AWS_REGION"):
        begun("kafka.example.com")


def test_a_token_is_reused_until_it_gets_old(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        login = access()
        first = (await login.exchange(HOST)).secret
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHER")
        now = time.time()
        monkeypatch.setattr("headrace._security.tokens.time.time", lambda: now + 470)
        assert (await login.exchange(HOST)).secret == first
        monkeypatch.setattr("headrace._security.tokens.time.time", lambda: now + 490)
        # The token is new. botocore keeps credentials of the environment.
        assert (await login.exchange(HOST)).secret is not first

    asyncio.run(main())


class Container(BaseHTTPRequestHandler):
    """The credentials of a container: others for each request, valid for five minutes. Afterwards only errors."""

    asked = 0
    limit = 0
    status = 500

    def do_POST(self) -> None:
        body = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
        body = body if self.status < 600 else b"broken"
        self.send_response(min(self.status, 503))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        kind = type(self)
        kind.asked += 1
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
        body = json.dumps({
            "AccessKeyId": f"KEY{kind.asked}",
            "SecretAccessKey": SECRET,
            "Token": "t",
            "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }).encode()  # fmt: skip
        self.send_response(200 if kind.asked <= kind.limit else kind.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Container]]:
    kind = type("Container", (Container,), {"asked": 0, "limit": 10})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    yield kind
    server.shutdown()
    thread.join(30)
    server.server_close()


def test_credentials_are_refreshed_before_they_expire(
    container: type[Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[str]:
        login = access()
        found = [(await login.exchange(HOST)).secret]
        now = time.time()
        monkeypatch.setattr("headrace._security.tokens.time.time", lambda: now + 490)
        return [*found, (await login.exchange(HOST)).secret]

    first, second = (parameters(token)["X-Amz-Credential"].split("/")[0] for token in asyncio.run(main()))
    assert first != second
    assert first.startswith("KEY")
    assert second == f"KEY{container.asked}"


def test_a_server_of_credentials_that_fails_is_asked_again_later(container: type[Container]) -> None:
    container.limit = 0
    with pytest.raises(
        NetworkError, match=r"cannot get AWS credentials \(CredentialRetrievalError, container-role\)"
    ) as caught:
        begun()
    # The text of botocore contains the response, with the key.
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_role_that_is_refused_is_a_final_error_and_a_failing_service_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: type[Container]
) -> None:
    """The service that gives out roles (STS) answers 403, 503, and nonsense."""
    role = "[profile r]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Environment\nregion = eu-west-1\n"
    (tmp_path / "config").write_text(role)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"])
    refused, garbled = r"\(ClientError, AccessDenied\)", r"\(ResponseParserError\)"
    for status, kind, text in (
        (403, AuthenticationError, refused),
        (503, NetworkError, refused),
        (600, NetworkError, garbled),
    ):
        container.status = status
        with pytest.raises(kind, match="cannot get AWS credentials " + text):
            begun(sasl_jaas_config=f"{MODULE} required awsProfileName=r;")


def test_without_credentials_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(HeadraceError, match="found no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID") as caught:
        begun()
    assert isinstance(caught.value, AuthenticationError)
    assert caught.value.step == "token"


def test_a_profile_of_javas_login_string_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text(
        f"[billing]\naws_access_key_id = OFPROFILE\naws_secret_access_key = {SECRET}\n"
    )
    made = begun(
        sasl_jaas_config=f'{MODULE} required awsProfileName="billing";',
        sasl_client_callback_handler_class="software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    )
    assert parameters(made.secret)["X-Amz-Credential"].startswith("OFPROFILE/")
    with pytest.raises(ConfigError, match=r"AWS_MSK_IAM: The config profile \(nobody\) could not be found"):
        config(**MSK, sasl_jaas_config=f'{MODULE} required awsProfileName="nobody";')
    with pytest.raises(ConfigError, match="awsRoleArn of IAMLoginModule is not supported: set role_arn in a profile"):
        config(**MSK, sasl_jaas_config=f'{MODULE} required awsRoleArn="arn:aws:iam::1:role/r";')


def test_spark_options_accept_the_settings_of_amazons_library() -> None:
    options = {
        "kafka.bootstrap.servers": f"{HOST}:9098",
        "subscribe": "orders",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": f"{MODULE} required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }
    assert SourceOptions.parse(options, streaming=True)


def test_without_botocore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigError, match=r"needs the package botocore: pip install 'headrace\[aws\]'"):
        ConsumerConfig.parse({"bootstrap.servers": "b:1"} | MSK)


def test_no_error_or_repr_shows_the_key() -> None:
    made = config(**MSK)
    assert SECRET not in repr(made)
    assert SECRET not in signed_url(begun().secret)
