"""The server of the page over HTTP: who is let in, what is refused, how it ends. The cluster is away the whole time."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
import time
import zlib
from collections.abc import Iterator

import pytest

from headrace.errors import HeadraceError
from headrace.ui import application, guard, open_streams
from headrace.ui.feed import Activity
from headrace.ui.server import BackgroundPage, PageOptions, listen, page_url
from support.harness.page_client import PageClient
from support.harness.retries import patiently, quickest

SECRET = "a long password"
AWAY = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 500, "request.timeout.ms": 400}


@pytest.fixture(scope="module")
def activity() -> Activity:
    return Activity("Demo")


@pytest.fixture(scope="module")
def page(activity: Activity) -> Iterator[PageClient]:
    with BackgroundPage(PageOptions(AWAY, port=0, interval=0.5, activity=activity)) as page:
        yield PageClient(page.url)


@pytest.fixture(scope="module")
def closed_page() -> Iterator[PageClient]:
    with BackgroundPage(PageOptions(AWAY, port=0, interval=0.5, secrets=(SECRET,))) as page:
        yield PageClient(page.url)


def cookie_of(client: PageClient) -> str:
    answer = client.log_in(SECRET)
    assert answer.status == 204
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize("path", ["/", "/groups", "/group?name=a%2Fb", "/topics", "/topic?name=..", "/activity"])
def test_every_address_of_the_page_is_the_same_document(page: PageClient, path: str) -> None:
    answer = page.get(path)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == page.get("/").body


def test_browsers_are_told_to_run_no_other_code(page: PageClient) -> None:
    for path in ("/", "/static/page.js", "/nothing", "/events?view=x"):
        headers = page.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_files_are_not_sent_again_if_they_are_known(page: PageClient) -> None:
    etag = page.get("/static/page.css").headers["etag"]
    answer = page.get("/static/page.css", if_none_match=etag)
    assert (answer.status, answer.body) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/x", "/static/"]
)
def test_no_other_file_is_served(page: PageClient, path: str) -> None:
    assert page.get(path).status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "10.0.0.1"])
def test_another_name_of_this_machine_is_refused(page: PageClient, host: str) -> None:
    for path in ("/", "/events?view=groups", "/static/page.js"):
        assert page.get(path, Host=host).status == 421


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/events", 400),
        ("/events?view=secrets", 400),
        ("/events?view=group&name=" + "x" * 5000, 400),
        ("/api/records", 400),
        ("/api/records?topic=a&count=0", 400),
        ("/api/records?topic=a&count=101", 400),
        ("/api/records?topic=a&count=" + "9" * 30, 400),
        ("/api/records?topic=a&count=" + "0" * 8 + "1" * 5000, 400),
        ("/api/records?topic=a&count=-1", 400),
        ("/api/records?topic=a&count=x", 400),
        ("/api/records?topic=a&count=%C2%B2", 400),
    ],
)
def test_requests_that_make_no_sense_are_refused(page: PageClient, path: str, status: int) -> None:
    answer = page.get(path)
    assert (answer.status, list(answer.json)) == (status, ["error"])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_is_read_only(page: PageClient, method: str) -> None:
    for path in ("/", "/groups", "/events", "/api/records"):
        assert page.ask(method, path).status == 405


def test_records_of_a_cluster_that_is_away_are_an_error_and_not_a_crash(page: PageClient) -> None:
    answer = page.get("/api/records?topic=orders")
    assert answer.status in (502, 504)
    assert answer.json["error"]


def test_a_cluster_that_is_away_is_reported_in_every_stream(page: PageClient) -> None:
    for view, name in (("groups", ""), ("topics", ""), ("group", "g"), ("topic", "t"), ("activity", "")):
        with page.events(view, name=name) as stream:
            while not stream.head.get("away"):
                assert stream.next() is not None
            assert stream.rows == {}
            assert "127.0.0.1:1" in stream.head["away"]["error"]
            assert stream.head["activity"] == "Demo"


def test_a_question_for_the_headers_of_a_stream_opens_none(page: PageClient) -> None:
    answer = page.ask("HEAD", "/events?view=groups")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def test_streams_that_nobody_reads_keep_nobody_out() -> None:
    """64 clients open a stream and never read it. Pages that read theirs keep them."""
    with BackgroundPage(PageOptions(AWAY, port=0, interval=3600.0)) as background, contextlib.ExitStack() as opened:
        page = PageClient(background.url)
        reader = opened.enter_context(page.events("groups"))
        first = reader.next()
        assert first is not None
        assert page.confirm(first["stream"]).status == 204
        for _ in range(open_streams.MOST):
            opened.enter_context(page.events("groups"))
        newcomer = opened.enter_context(page.events("topics"))
        assert newcomer.next() is not None
        assert page.confirm(first["stream"]).status == 204, "it is open"


def test_pages_that_read_their_streams_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "OpenStreams", lambda: open_streams.OpenStreams(2))
    with BackgroundPage(PageOptions(AWAY, port=0, interval=3600.0)) as background, contextlib.ExitStack() as opened:
        page = PageClient(background.url)
        for _ in range(2):
            change = opened.enter_context(page.events("groups")).next()
            assert change is not None
            assert page.confirm(change["stream"]).status == 204
        answer = page.get("/events?view=groups")
        assert (answer.status, list(answer.json), answer.headers["retry-after"]) == (503, ["error"], "5")
        assert page.get("/").status == 200


@pytest.mark.parametrize(("stream", "status"), [("unknown", 404), (1, 400), (None, 400)])
def test_only_an_open_stream_can_be_confirmed(page: PageClient, stream: object, status: int) -> None:
    assert page.confirm(stream).status == status


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/page.css"])
def test_files_are_compressed_for_browsers_that_accept_it(page: PageClient, path: str) -> None:
    plain, small = page.get(path), page.get(path, accept_encoding="gzip, br")
    assert (plain.headers["content-encoding"], small.headers["content-encoding"]) == (None, "gzip")
    assert gzip.decompress(small.body) == plain.body
    assert len(small.body) < len(plain.body) * 0.6
    assert (small.headers["etag"], small.headers["vary"]) == (plain.headers["etag"], "accept-encoding")


def test_a_stream_is_compressed_and_its_events_arrive_at_once(page: PageClient) -> None:
    with page.events("groups", {"accept-encoding": "gzip"}) as stream:
        assert stream.response.headers["content-encoding"] == "gzip"
        reader, text = zlib.decompressobj(31), b""
        while b"\n\ndata: " not in text or not text.endswith(b"\n\n"):
            text += reader.decompress(stream.response.read1(65536))
    assert '"reset":true' in text.decode()


# -- with a secret ----------------------------------------------------------------------------------------------------


def test_without_a_secret_there_is_only_the_way_to_the_login(closed_page: PageClient) -> None:
    answer = closed_page.get("/group?name=a")
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2Fgroup%3Fname%3Da")
    for path in ("/events?view=groups", "/api/records?topic=a"):
        assert closed_page.get(path).status == 401
    assert closed_page.get("/login").status == 200
    assert closed_page.get("/static/login.js").status == 200


def test_a_login_opens_the_page_for_this_browser(closed_page: PageClient) -> None:
    answer = closed_page.log_in(SECRET)
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
    assert SECRET not in str(answer.headers)
    assert closed_page.get("/", Cookie=cookie).status == 200
    with closed_page.events("groups", {"cookie": cookie}) as stream:
        assert stream.next() is not None


@pytest.mark.parametrize("other", ['prefs={"a":1}', "a b=c", "x", "=;=", 'y="'])
def test_cookies_of_other_programs_on_this_host_do_not_matter(closed_page: PageClient, other: str) -> None:
    cookie = cookie_of(closed_page)
    for both in (f"{other}; {cookie}", f"{cookie}; {other}"):
        assert closed_page.get("/", Cookie=both).status == 200


def test_a_program_sends_the_secret_with_every_request(closed_page: PageClient) -> None:
    assert closed_page.get("/", Authorization=f"Bearer {SECRET}").status == 200
    assert closed_page.get("/", Authorization=f"Basic {SECRET}").status == 303


@pytest.mark.parametrize("cookie", ["", "headrace-1=x", "headrace=x.y", "=;=", "a" * 3000])
def test_other_cookies_do_not_open_it(closed_page: PageClient, cookie: str) -> None:
    assert closed_page.get("/events?view=groups", Cookie=cookie).status == 401
    made_up = f"headrace-{closed_page.port}=9999999999.{'0' * 64}"
    assert closed_page.get("/events?view=groups", Cookie=made_up).status == 401


def test_guesses_are_slow_and_few_at_a_time(closed_page: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(delay: float) -> None:
        monkeypatch.setattr(guard, "_WRONG_SECRET_DELAY", delay / 2)
        found: list[int] = []
        begun = time.monotonic()
        threads = [threading.Thread(target=lambda: found.append(closed_page.log_in("guess").status)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(found) == {401, 429}
        assert time.monotonic() - begun >= delay / 2

    patiently(scenario)
    assert closed_page.get("/", Authorization=f"Bearer {SECRET}").status == 200


def test_guesses_of_one_address_limit_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_WRONG_SECRET_DELAY", 60.0)  # they wait until the server ends
    token = "t" * 32
    with BackgroundPage(PageOptions(AWAY, port=0, secrets=(SECRET, token))) as page:
        client, other = PageClient(page.url), PageClient(page.url, source="127.0.0.2")
        cookie = cookie_of(client)

        def guess() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # the server ends
                client.log_in("guess")

        guesses = [threading.Thread(target=guess) for _ in range(4)]
        for each in guesses:
            each.start()
        deadline = time.monotonic() + 10
        while (limited := client.log_in(SECRET)).status != 429:  # until all of them have arrived
            assert time.monotonic() < deadline
        assert limited.headers["retry-after"] == "1"
        for path in ("/", "/api/records"):
            assert client.get(path, Authorization=f"Bearer {SECRET}").status == 429
        assert client.get("/", Cookie=cookie).status == 200
        assert client.get("/", Authorization=f"Bearer {token}").status == 200
        assert client.log_in(token).status == 204
        assert other.log_in(SECRET).status == 204
        assert other.get("/", Authorization=f"Bearer {SECRET}").status == 200
        assert all(each.is_alive() for each in guesses)
    for each in guesses:
        each.join()


@pytest.mark.parametrize(
    ("client", "peer"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_version_6(client: str, peer: str) -> None:
    assert guard.peer_of(client) == peer


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "application/x-www-form-urlencoded"}, b"secret=x", 415),
        ({"content-type": "application/json"}, b"", 400),
        ({"content-type": "application/json"}, b"[]", 400),
        ({"content-type": "application/json"}, b"[" * 4000, 400),
        ({"content-type": "application/json"}, b'{"secret": 1}', 400),
        ({"content-type": "application/json"}, b'{"secret": "\\ud800"}', 401),
        ({"content-type": "application/json"}, b'{"secret": "' + b"x" * 9000 + b'"}', 413),
        ({"content-type": "application/json", "origin": "http://evil.example"}, b'{"secret": "x"}', 403),
        ({"content-type": "application/json", "origin": "http://[x"}, b'{"secret": "x"}', 403),
    ],
)
def test_logins_that_make_no_sense_are_refused(
    closed_page: PageClient, headers: dict[str, str], body: bytes, status: int
) -> None:
    assert closed_page.ask("POST", "/login", headers, body).status == status


def test_a_logout_removes_the_cookie(closed_page: PageClient) -> None:
    answer = closed_page.ask("POST", "/logout", {"cookie": cookie_of(closed_page)})
    assert (answer.status, "Max-Age=0" in answer.headers["set-cookie"]) == (204, True)


# -- beginning and end ------------------------------------------------------------------------------------------------


def test_another_address_without_a_secret_is_not_served() -> None:
    with pytest.raises(HeadraceError, match=r"0\.0\.0\.0 is not loopback: a password or a token is needed"):
        BackgroundPage(PageOptions(AWAY, host="0.0.0.0", port=0)).__enter__()


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            HeadraceError, match=f"127.0.0.1:{port}: the port is in use. Choose another one with --port"
        ):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(HeadraceError, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/"),
        ("::1", "http://[::1]:80/"),
        ("0.0.0.0", f"http://{socket.gethostname()}:80/"),
    ],
)
def test_the_address_that_is_shown_can_be_opened(host: str, url: str) -> None:
    assert page_url(host, 80) == url


def test_open_streams_end_with_the_server() -> None:
    """In at least one of several tries, since the machine may be busy."""

    def seconds_of_the_end() -> float:
        with BackgroundPage(PageOptions(AWAY, port=0)) as page:
            client = PageClient(page.url)
            stream = client.events("groups")
            reader = stream.__enter__()
            assert reader.next() is not None
            begun = time.monotonic()
        while reader.next() is not None:
            pass
        stream.__exit__(None, None, None)
        took = time.monotonic() - begun
        assert not page._thread.is_alive()
        return took

    assert quickest(seconds_of_the_end, 3) < 3


def test_what_a_command_publishes_from_its_thread_reaches_the_browser_at_once() -> None:
    """Also without a cluster: the next pass is an hour away."""
    activity = Activity("Demo")
    options = PageOptions(AWAY, port=0, interval=3600.0, activity=activity)
    with BackgroundPage(options) as page, PageClient(page.url).events("activity") as stream:
        while not stream.head.get("away"):
            assert stream.next() is not None
        activity.publish({"stage": "reading"}, {"a": {"rows": 1}})
        while stream.head.get("stage") != "reading":  # the first pass may end only now
            assert stream.next() is not None
        assert stream.head["title"] == "Demo"
        assert stream.rows == {"a": {"rows": 1}}
