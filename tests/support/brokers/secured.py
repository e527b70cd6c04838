"""One secured broker for all tests that need one, and helpers for its topics, records, ACLs and tokens.

It accepts PLAIN, SCRAM, OAUTHBEARER (with unsigned tokens) and certificates. Logins with SCRAM-SHA-256 last for a few
seconds only, others as long as the connection.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave most of them out
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace import LocalBroker
from support.brokers.admin import _quiet, unique
from support.harness.waiting import wait_for

SESSION = 2.5
"""Lifetime of a SCRAM-SHA-256 login in seconds."""
PASSWORDS = {
    "reader": 'reader\'s "own" pass\\word, 1',
    "stranger": "stranger-secret-77",  # never gets any ACL
    "writer": "writer-secret-31",
    "oidc": "unused-here-4",
    "billing": "billing-secret-58",  # the user of docs/security.md
}
_TIMEOUT = 60.0
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_PROPERTIES = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.secure.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";',
    "listener.name.secure.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler",
    "listener.name.secure.scram-sha-256.connections.max.reauth.ms": int(SESSION * 1000),
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.check.interval.ms": 500,
    "log.retention.ms": -1,  # of topics without one: records with old timestamps stay
}


class SecuredBroker:
    """The broker, and the operations of its administrator."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.admin_config = broker.mutual_config
        self._admin = AdminClient({**self.admin_config, "logger": _quiet})

    def create(self, prefix: str, records: int = 0, partitions: int = 1) -> str:
        """Create a topic with `records` numbered records in each partition."""
        name = unique(prefix)
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_TIMEOUT)
        producer = self.producer()
        for partition in range(partitions):
            for number in range(records):
                producer.produce(name, b"%d" % number, partition=partition)
        assert producer.flush(_TIMEOUT) == 0
        return name

    def delete_group(self, name: str) -> None:
        self._admin.delete_consumer_groups([name])[name].result(_TIMEOUT)

    def producer(self) -> Producer:
        return Producer({**self.admin_config, "logger": _quiet, "linger.ms": 5, "enable.idempotence": True})

    def allow(self, user: str, kind: str, name: str, *operations: str, is_prefix: bool = False) -> None:
        """Add an ACL for a topic, a group or a transactional id, and wait until the broker applies it."""
        pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
        bindings = [
            AclBinding(
                ResourceType[kind.upper()],
                name,
                pattern,
                f"User:{user}",
                "*",
                AclOperation[operation.upper()],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for done in self._admin.create_acls(bindings).values():
            done.result(_TIMEOUT)
        wait_for(f"ACLs of {user} for {name}", lambda: set(bindings) <= set(self._rights(kind, name, pattern)))

    def disallow(self, user: str, kind: str, name: str) -> None:
        """Delete all ACLs of the user for a topic or group, if there are any, and wait until the broker applies it."""
        found = [right for right in self._rights(kind, name) if right.principal == f"User:{user}"]
        if not found:
            return
        filters = [
            AclBindingFilter(each.restype, name, ResourcePatternType.LITERAL, each.principal, *every)
            for each in found
            for every in [("*", each.operation, each.permission_type)]
        ]
        for done in self._admin.delete_acls(filters).values():
            done.result(_TIMEOUT)
        gone = set(found)
        wait_for(f"no ACLs of {user} for {name}", lambda: gone.isdisjoint(self._rights(kind, name)))

    def _rights(
        self, kind: str, name: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL
    ) -> list[AclBinding]:
        every = AclOperation.ANY, AclPermissionType.ANY
        wanted = AclBindingFilter(ResourceType[kind.upper()], name, pattern, None, None, *every)
        found: list[AclBinding] = self._admin.describe_acls(wanted).result(_TIMEOUT)
        return found

    def log(self) -> str:
        return self.broker.log_path.read_text(errors="replace")

    @property
    def oauth_config(self) -> dict[str, Any]:
        """Settings for OAUTHBEARER, without a token source."""
        config = self.broker.client_config
        kept = ("bootstrap.servers", "security.protocol", "ssl.ca.location")
        return {name: config[name] for name in kept} | {"sasl.mechanism": "OAUTHBEARER"}


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredBroker]:
    with LocalBroker(secure=True, users=PASSWORDS, properties=_PROPERTIES, start_timeout=100.0) as broker:
        yield SecuredBroker(broker)


def unsigned_token(subject: str, lifetime: float = 3600.0) -> str:
    """A JWT with algorithm none. Kafka requires whole seconds in `iat` and accepts the token until `exp`."""
    now = time.time()
    claims = {"sub": subject, "iat": int(now) - 1, "exp": now + lifetime}
    parts = ({"alg": "none"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


class TokenServer:
    """An OIDC provider for client credentials. It first sends `answers` (status and body) in order. Providers differ in
    whether they want id and secret URL-encoded."""

    CLIENT, SECRET = "the client", "s3cret/of+the=client"

    def __init__(self, subject: str = "admin", lifetime: float = 3600.0) -> None:
        self.asked: list[dict[str, str]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.wants_urlencoded = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                pair = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                known = [outer.CLIENT, outer.SECRET]
                if outer.wants_urlencoded:
                    known = [urllib.parse.quote_plus(part) for part in known]
                outer.asked.append(form)
                if outer.answers:
                    status, body = outer.answers.pop(0)
                elif pair != ":".join(known):
                    status, body = 401, b'{"error": "invalid_client"}'
                else:
                    token = {"access_token": unsigned_token(subject, lifetime), "expires_in": lifetime}
                    status, body = 200, json.dumps(token).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def config(self) -> dict[str, str]:
        return {
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.id": self.CLIENT,
            "sasl.oauthbearer.client.secret": self.SECRET,
            "sasl.oauthbearer.scope": "kafka",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def token_server() -> Iterator[TokenServer]:
    server = TokenServer()
    yield server
    server.close()
