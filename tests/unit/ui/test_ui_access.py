"""Who may see the page: hosts, origins, secrets and sessions."""

from __future__ import annotations

import pytest

from headrace.monitor.loopback import is_loopback_address
from headrace.ui.access import SESSION_SECONDS, PageAccess, digest

OPEN = PageAccess(b"key")
CLOSED = PageAccess(b"key", (digest("swordfish"), digest("a token")))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080", "a.localhost"]
)
def test_a_page_without_a_secret_answers_to_names_of_this_machine(host: str) -> None:
    assert OPEN.refusal("GET", {"host": host}) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[",
        "[::1",
    ],
)
def test_a_page_without_a_secret_answers_to_no_other_name(host: str) -> None:
    refusal = OPEN.refusal("GET", {"host": host})
    assert refusal is not None
    assert refusal.status == 421


def test_a_page_with_a_secret_answers_to_any_name() -> None:
    assert CLOSED.refusal("GET", {"host": "monitoring.example"}) is None


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"origin": "http://localhost:8080"}, None),
        ("POST", {"origin": "https://localhost:8080"}, None),  # behind a proxy with TLS
        ("POST", {}, None),  # a program
        ("POST", {"origin": "http://localhost:9999"}, 403),
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "http://[x"}, 403),
        ("DELETE", {"origin": "http://evil.example"}, 403),
        ("GET", {"origin": "http://evil.example"}, None),  # it cannot read the answer
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),  # another port of this machine
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, None),  # a link
        ("GET", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, None),
    ],
)
def test_requests_of_other_sites_are_refused(method: str, headers: dict[str, str], status: int | None) -> None:
    refusal = OPEN.refusal(method, {"host": "localhost:8080", **headers})
    assert (refusal and refusal.status) == status


@pytest.mark.parametrize(
    ("secret", "is_right"),
    [
        ("swordfish", True),
        ("a token", True),
        ("Swordfish", False),
        ("", False),
        ("sword", False),
        ("ä", False),
        ("\ud800", False),
    ],
)
def test_each_secret_opens_the_page_and_nothing_else_does(secret: str, is_right: bool) -> None:
    assert CLOSED.is_secret(secret) is is_right
    assert not OPEN.is_secret(secret)


def test_a_secret_of_the_environment_may_have_any_bytes() -> None:
    assert PageAccess(b"key", (digest("caf\udce9"),)).is_secret("caf\udce9")


def test_a_session_lasts_for_half_a_day() -> None:
    cookie = CLOSED.new_session(1000.0)
    assert CLOSED.is_session(cookie, 1000.0)
    assert CLOSED.is_session(cookie, 1000.0 + SESSION_SECONDS - 1)
    assert not CLOSED.is_session(cookie, 1000.0 + SESSION_SECONDS)


def test_a_session_cannot_be_made_up_extended_or_kept_over_a_restart() -> None:
    expiry, signature = CLOSED.new_session(1000.0).split(".")
    for cookie in ("", ".", "x", f"{int(expiry) + 1}.{signature}", f"{expiry}.", f"{expiry}.{signature[:-1]}", "ä.ä"):
        assert not CLOSED.is_session(cookie, 1000.0), cookie
    assert not PageAccess(b"another key", CLOSED.digests).is_session(f"{expiry}.{signature}", 1000.0)


def test_secrets_are_not_shown() -> None:
    assert repr(CLOSED) == "PageAccess()"


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("example.com", False),
    ],
)
def test_only_loopback_addresses_need_no_secret(host: str, is_loopback: bool) -> None:
    assert is_loopback_address(host) is is_loopback
