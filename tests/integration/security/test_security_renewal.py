"""Logins that last for seconds: they are renewed on the same connections, without gaps or lost records.

The broker closes connections that are used after their login has expired. That must not happen here.
"""

from __future__ import annotations

import pytest

from headrace.errors import AuthenticationError
from support.brokers.secured import SESSION, SecuredBroker, TokenServer, unsigned_token
from support.harness.consumers import MakeConsumer
from support.harness.login_renewals import read_for, reads_on
from support.harness.retries import patiently


def test_a_login_by_password_is_renewed_without_a_gap(
    make_async: MakeConsumer, secured: SecuredBroker, steady: tuple[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    reads_on(make_async, secured.broker.config_of("admin", "SCRAM-SHA-256"), steady, caplog)


def test_a_short_lived_token_is_renewed_without_a_gap(
    make_sync: MakeConsumer,
    secured: SecuredBroker,
    steady: tuple[str, list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tokens that usually last an hour last for seconds here."""
    server = TokenServer(lifetime=SESSION)
    try:
        reads_on(make_sync, secured.oauth_config | server.config, steady, caplog, server.asked.clear)
        assert 2 <= len(server.asked) <= 6, "all connections share a token"
    finally:
        server.close()


def test_a_rejected_login_renewal_raises_authentication_error(make_sync: MakeConsumer, secured: SecuredBroker) -> None:
    """The renewal has another user, which a broker rejects.

    If the machine is busy for as long as a login lasts, the connection may be lost. A new connection accepts the other
    user, who has no permission for the topic. The scenario is then retried.
    """
    topic = secured.create("revoked", 5)

    def scenario(scale: float) -> None:
        names = iter(["admin"])

        def token() -> str:
            return unsigned_token(next(names, "somebody else"), scale * SESSION)

        consumer = make_sync(secured.oauth_config, sasl_oauthbearer_token_callback=token, auto_offset_reset="earliest")
        consumer.assign([(topic, 0)])
        with consumer, pytest.raises(AuthenticationError) as caught:
            read_for(consumer, 60)
        assert caught.value.step == "authenticate"

    patiently(scenario)
