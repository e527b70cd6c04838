"""The page in a real browser, with a real broker: groups that lag, lanes that close, share groups, rebalances.

Screenshots are kept in build/ui/. The tests share one broker, one server and one browser; each leaves the browser where
the next one opens its own address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from headrace import AcknowledgeType, Consumer, LocalBroker, OffsetAndMetadata, ShareConsumer, TopicPartition
from headrace import Admin as KafkaAdmin
from headrace.ui.server import BackgroundPage, PageOptions
from support.brokers.admin import Admin, unique
from support.brokers.produce import Outgoing, numbered, write
from support.harness.browser import PICTURES, Browser, chromium
from support.harness.paced_members import PacedConsumer
from support.harness.share_consumers import poll_some, share_group

_ROW = "tbody tr[data-id='group:{}']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        browser.resize(1280, 900)
        yield browser


@pytest.fixture(scope="module")
def page(servers: str, browser: Browser) -> Iterator[str]:
    settings = {"bootstrap.servers": servers, "default.api.timeout.ms": 10_000, "request.timeout.ms": 10_000}
    with BackgroundPage(PageOptions(settings, port=0, interval=0.5)) as page:
        yield page.url


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    """No test leaves an error in the console: no script fails, and the content security policy is kept."""
    yield
    assert browser.complaints() == []


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    with Consumer(bootstrap_servers=servers, group_id=group) as consumer:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset)})


@pytest.fixture(scope="module")
def lagging(servers: str, admin: Admin) -> tuple[str, str]:
    """A group without members, with 1,234 records waiting."""
    topic, group = admin.create("orders", name=unique("orders")), unique("billing")
    write(servers, topic, [Outgoing(json.dumps({"order": number}).encode()) for number in range(1300)])
    commit(servers, group, topic, 66)
    return group, topic


@contextmanager
def restored(browser: Browser) -> Iterator[None]:
    try:
        yield
    finally:
        browser.resize(1280, 900)
        browser.prefer()


def test_a_group_that_lags_is_found_filtered_opened_and_left_with_the_keyboard(
    browser: Browser, page: str, lagging: tuple[str, str]
) -> None:
    group, topic = lagging
    browser.open(page)
    browser.wait_text("1,234", _ROW.format(group))
    assert "no members, and records are waiting" in browser.texts(_ROW.format(group))[0]
    browser.press("/")
    assert browser.run("return document.activeElement.type") == "search"
    browser.press(*group)
    browser.wait("one row", "return document.querySelectorAll('tbody tr').length === 1")
    browser.press("\ue015", "\ue007")  # arrow down, enter
    browser.wait_text(f"{topic}-0", "main tbody tr")
    assert browser.run("return document.title") == f"{group} · Headrace"
    row = browser.texts("main .table tbody tr")[0]
    assert re.search(r"\b66\b.*\b1,300\b.*\b1,234\b", row, re.DOTALL), row
    browser.press("\ue00c")  # escape
    browser.wait(
        "the row has the focus",
        "return document.activeElement.closest('tr')?.dataset.id === arguments[0]",
        f"group:{group}",
    )
    assert browser.run("return location.pathname") == "/groups"


def test_the_newest_records_of_a_topic_are_read(browser: Browser, page: str, lagging: tuple[str, str]) -> None:
    group, topic = lagging
    browser.open(f"{page}topic?name={topic}")
    browser.wait_text(group, "main")
    browser.wait_text("5 % of the log", "main")
    browser.click("section[aria-label='Newest records'] button")
    browser.wait_text('{"order": 1299}', ".records")
    assert len(browser.texts(".records tbody tr")) == 20


def test_a_backlog_lane_is_drawn_until_it_closes(browser: Browser, page: str, servers: str, admin: Admin) -> None:
    topic, group = admin.create("clicks"), unique("indexing")
    write(servers, topic, numbered(4000))
    commit(servers, group, topic, 100)
    # So slow that a busy page sees the backlog before it is closed.
    with PacedConsumer(servers, group, topic, 200, enable_parallel_rebalance=True) as consumer:
        browser.open(f"{page}group?name={group}")
        browser.wait("a backlog lane", "return document.querySelector('.log .backlog')?.getAttribute('width') > 100")
        browser.screenshot(PICTURES / "lanes.png")
        width = "return Number(document.querySelector('.log .backlog')?.getAttribute('width') ?? 0)"
        before = browser.run(width)
        browser.wait("it becomes shorter", f"{width.replace('return ', 'return ')} < arguments[0]", before)
        assert "backlog" in browser.texts("main .table tbody tr")[0]
        consumer.rate = 20_000
        browser.wait("it closes", "return !document.querySelector('.log .backlog')")
        browser.wait_text("now", "dl")
    assert browser.run("return performance.getEntriesByType('navigation').length") == 1  # it was not loaded again


def test_a_share_group_has_its_start_and_what_is_done_out_of_order(
    browser: Browser, page: str, servers: str, admin: Admin
) -> None:
    topic, group = admin.create("mails"), share_group(servers)
    write(servers, topic, numbered(50))
    with ShareConsumer(bootstrap_servers=servers, group_id=group, share_acknowledgement_mode="explicit") as consumer:
        consumer.subscribe([topic])
        first, *others = poll_some(consumer, max_records=10)
        for record in others:
            consumer.acknowledge(record)
        consumer.acknowledge(first, AcknowledgeType.RELEASE)
        consumer.commit()
        browser.open(f"{page}group?name={group}")
        browser.wait_text(f"{topic}-0", "main tbody tr")
        assert "Done out of order" in browser.texts("main .table thead")[0]
        assert "share" in browser.texts(".badges")[0]
        waiting = 50 - len(others)
        row = rf"0\s+50\s+{waiting}\s.*\b{len(others)}\b"  # start, end, lag, done out of order
        browser.wait("its offsets", f"return /{row}/s.test(document.querySelector('main .table tbody').innerText)")


def test_a_rebalance_is_in_the_timeline(browser: Browser, page: str, servers: str, admin: Admin) -> None:
    topic, group = admin.create("moves", 4), unique("moving")
    write(servers, topic, numbered(10))
    with ExitStack() as stack:
        stack.enter_context(PacedConsumer(servers, group, topic, 1000, group_protocol="consumer"))
        browser.open(f"{page}group?name={group}")
        browser.wait_text("4", "section[aria-label='Members'] td.number")
        stack.enter_context(PacedConsumer(servers, group, topic, 1000, group_protocol="consumer", client_id="second"))
        browser.wait_text("second@", "section[aria-label='Members']")
        browser.wait_text("1 member joined, 2 partitions moved", ".events")
        assert browser.run("return document.querySelectorAll('.timeline rect').length") >= 1


def test_rows_keep_their_places_while_the_focus_is_in_the_table(
    browser: Browser, page: str, servers: str, lagging: tuple[str, str], admin: Admin
) -> None:
    group, topic = lagging
    browser.open(page)
    browser.wait_text("1,234", _ROW.format(group))
    browser.run("document.querySelector(arguments[0]).querySelector('a').focus()", _ROW.format(group))
    before = browser.run("return [...document.querySelectorAll('tbody tr')].map(it => it.dataset.id)")
    worse = unique("a-worse-one")
    commit(servers, worse, topic, 5000)  # beyond the end: a problem, so it belongs to the top
    browser.wait_text("beyond the end", _ROW.format(worse))
    order = "return [...document.querySelectorAll('tbody tr')].map(it => it.dataset.id)"
    assert browser.run(order) == [*before, f"group:{worse}"]
    assert browser.run("return document.activeElement.closest('tr').dataset.id") == f"group:{group}"
    browser.run("document.activeElement.blur()")
    browser.wait(
        "it goes to the top", f"return ({order.removeprefix('return ')})[0] === arguments[0]", f"group:{worse}"
    )


def test_a_row_is_one_line_and_shows_the_topic_that_a_filter_matches(
    browser: Browser, page: str, lagging: tuple[str, str]
) -> None:
    group, topic = lagging
    browser.open(page)
    browser.wait_text("1,234", _ROW.format(group))
    height = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    assert browser.run(height, _ROW.format(group)) <= 32
    assert topic not in browser.texts(_ROW.format(group))[0]
    browser.press("/", *topic)
    browser.wait_text(f"topic {topic}", _ROW.format(group))
    assert browser.run(height, _ROW.format(group)) <= 32
    browser.press("\ue00c")  # escape: the filter is empty
    browser.wait("no topic", "return !document.querySelector('.matched')")


def test_a_chart_shows_the_values_under_the_pointer(browser: Browser, page: str, lagging: tuple[str, str]) -> None:
    group, _ = lagging
    point = """
        const plot = document.querySelector(arguments[0]);
        const box = plot.getBoundingClientRect();
        const at = { clientX: box.left + box.width / 2, clientY: box.top + 5, bubbles: true };
        plot.dispatchEvent(new PointerEvent(arguments[1], at));
        const label = plot.querySelector('.value');
        return label.checkVisibility() ? label.innerText : null
    """
    for address, chart in (("", f"{_ROW.format(group)} .values"), (f"group?name={group}", ".plot .values")):
        browser.open(page + address)
        browser.wait("a curve", f"return document.querySelector(\"{chart} .line\")?.getAttribute('d')?.length > 20")
        assert re.fullmatch(r"1,234 records · \d\d:\d\d:\d\d", browser.run(point, chart, "pointermove"))
        assert browser.run(point, chart, "pointerleave") is None


def test_a_curve_grows_by_the_points_that_are_sent(browser: Browser, page: str, lagging: tuple[str, str]) -> None:
    browser.open(f"{page}group?name={lagging[0]}")
    points = "document.querySelector('.plot .line')?.getAttribute('d')?.split(/[ML]/).slice(1)"
    browser.wait("a curve", f"return {points}?.length > 1")
    before = browser.run(f"return {points}.length")
    browser.wait("three more points", f"return {points}.length >= arguments[0] || {points}.length >= 59", before + 3)
    times = browser.run(f"return {points}.map(it => parseFloat(it))")
    assert times == sorted(set(times)), "no point is there twice"


def test_a_page_confirms_that_it_reads_its_data(browser: Browser, page: str) -> None:
    browser.open(page)
    browser.wait(
        "a confirmation",
        "return performance.getEntriesByName(new URL('/api/reading', location)).some(it => it.responseStatus === 204)",
    )


def test_the_bar_of_a_group_that_has_processed_nothing_is_empty(
    browser: Browser, page: str, servers: str, admin: Admin
) -> None:
    """The colour of what is not processed is that of the track, not of a full bar."""
    topic, group = admin.create("unread"), unique("unread")
    write(servers, topic, numbered(50))
    commit(servers, group, topic, 0)
    browser.open(f"{page}topic?name={topic}")
    browser.wait_text("0 % of the log", "main")
    assert browser.run("return document.querySelector('progress').value") == 0
    colours = browser.run(
        """
        const style = getComputedStyle(document.querySelector('progress'));
        const lane = document.body.appendChild(document.createElement('i'));
        lane.className = 'swatch live';
        return [style.backgroundColor, getComputedStyle(lane).backgroundColor]
        """
    )
    assert colours[0] != colours[1]


def test_rebalances_have_colours_of_their_own(browser: Browser, page: str, lagging: tuple[str, str]) -> None:
    browser.open(f"{page}group?name={lagging[0]}")
    browser.wait_text(f"{lagging[1]}-0", "main tbody tr")
    for theme in ("light", "dark"):
        browser.prefer(prefers_color_scheme=theme)
        colours = browser.run(
            "return [...document.querySelectorAll('.swatch')].map(it => getComputedStyle(it).backgroundColor)"
        )
        assert len(colours) == len(set(colours)) == 6
    browser.prefer()


def test_characters_that_change_the_direction_of_text_are_shown(
    browser: Browser, page: str, servers: str, admin: Admin
) -> None:
    topic, group = admin.create("odd"), unique("user\u202esgol")
    write(servers, topic, [Outgoing(value="a\u2066b".encode(), key="k\u200ey".encode())])
    commit(servers, group, topic, 0)
    browser.open(page)
    browser.wait_text("user<U+202E>sgol", "tbody")
    assert "\u202e" not in browser.run("return document.body.innerText")
    browser.press("/", *"sgol", "\ue015", "\ue007")
    browser.wait_text(f"{topic}-0", "main tbody tr")  # the link has the name as it is
    assert browser.run("return document.title").startswith("user<U+202E>sgol")
    browser.open(f"{page}topic?name={topic}")
    browser.wait_text("user<U+202E>sgol", "main")
    browser.click("section[aria-label='Newest records'] button")
    browser.wait_text("a<U+2066>b", ".records")
    assert "k<U+200E>y" in browser.texts(".records .key")[0]


def test_all_brokers_are_shown(browser: Browser, page: str, servers: str, lagging: tuple[str, str]) -> None:
    for address in ("groups", "topics"):
        browser.open(page + address)
        browser.wait_text(servers, ".brokers")
        assert re.search(r"^1\s+127.0.0.1:\d+\s+leads \d+ partitions$", browser.texts(".brokers li")[0])


def test_a_hidden_page_pauses(browser: Browser, page: str, lagging: tuple[str, str]) -> None:
    browser.open(page)
    browser.wait_text("1,234", _ROW.format(lagging[0]))
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
    browser.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", True)
    assert browser.texts("#live") == ["Paused"]
    browser.run(hide + "document.dispatchEvent(new Event('visibilitychange'))", False)
    browser.wait_text("Live", "#live")


@pytest.mark.parametrize("address", ["groups", "group?name={0}", "topics", "topic?name={1}"])
def test_a_narrow_screen_needs_no_sideways_scrolling(
    browser: Browser, page: str, lagging: tuple[str, str], address: str
) -> None:
    with restored(browser):
        browser.resize(360, 740)
        browser.open(page + address.format(*lagging))
        browser.wait("data", "return document.querySelector('main:not(.loading) tbody tr')")
        wide = """
            return [...document.querySelectorAll('main *')].filter(it => it.getBoundingClientRect().right > 361)
                .map(it => it.outerHTML.slice(0, 90))
        """
        assert browser.run("return document.scrollingElement.scrollWidth") <= 360
        assert browser.run(wide) == []  # nothing is cut off, either
        browser.screenshot(PICTURES / f"narrow-{address.partition('?')[0]}.png")


def test_the_theme_follows_the_system_until_it_is_chosen(
    browser: Browser, page: str, lagging: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    with restored(browser):
        browser.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
        browser.open(page)
        browser.wait_text("1,234", _ROW.format(lagging[0]))
        dark = browser.run(colour)
        browser.screenshot(PICTURES / "groups-dark.png")
        browser.prefer(prefers_color_scheme="light")
        light = browser.run(colour)
        assert light != dark
        browser.screenshot(PICTURES / "groups-light.png")
        browser.click("#theme")
        assert (browser.texts("#theme"), browser.run(colour)) == (["◐ Dark"], dark)
        browser.open(f"{page}topics")
        assert browser.run(colour) == dark  # it is remembered
        browser.click("#theme")
        browser.click("#theme")
        assert browser.texts("#theme") == ["◐ Auto"]
    with capsys.disabled():
        print(f"\nscreenshots: {PICTURES}")


def test_everything_has_a_name_for_screen_readers(browser: Browser, page: str, lagging: tuple[str, str]) -> None:
    browser.open(f"{page}group?name={lagging[0]}")
    browser.wait_text(f"{lagging[1]}-0", "main tbody tr")
    unnamed = """
        const name = it => it.getAttribute('aria-label') || it.innerText?.trim() || it.title || it.alt;
        return [...document.querySelectorAll('a, button, input, [role=img], nav, section')]
            .filter(it => it.checkVisibility() && !name(it)).map(it => it.outerHTML.slice(0, 100))
    """
    assert browser.run(unnamed) == []
    assert "not processed: 66 to 1,300" in browser.run(
        "return document.querySelector('.log').getAttribute('aria-label')"
    )
    browser.press("\ue004")  # tab
    assert browser.run("return document.activeElement.className") == "skip"


def test_a_cluster_that_is_away_is_shown_and_goes_on_when_it_returns(
    browser: Browser, page: str, kafka_broker: LocalBroker, lagging: tuple[str, str]
) -> None:
    browser.open(page)
    browser.wait_text("1,234", _ROW.format(lagging[0]))
    (broker,) = kafka_broker.brokers
    kafka_broker.pause(broker)
    try:
        browser.wait_text("The cluster has been unreachable since", "#banner")
        assert "1,234" in browser.texts(_ROW.format(lagging[0]))[0]  # the latest data stays
        assert browser.run("return document.querySelector('main').classList.contains('stale')")
        assert "The cluster has been unreachable" in browser.run(
            "return document.getElementById('announcer').textContent"
        )
        browser.screenshot(PICTURES / "away.png")
    finally:
        kafka_broker.resume(broker)
    browser.wait(
        "it is live again",
        "return document.getElementById('banner').hidden && !document.querySelector('main.stale')",
    )
    assert browser.texts("#live") == ["Live"]


def test_a_group_is_reset_and_deleted_in_dialogs(
    browser: Browser, servers: str, lagging: tuple[str, str], page: str
) -> None:
    topic, group = lagging[1], unique("moved")
    commit(servers, group, topic, 66)
    browser.open(f"{page}group?name={group}")
    browser.wait_text("1,234", "dl")
    assert browser.run("return document.querySelector('.changes').hidden")  # this page is read-only
    settings = {"bootstrap.servers": servers}
    with BackgroundPage(PageOptions(settings, port=0, interval=0.5, allows_changes=True)) as changing:
        browser.open(f"{changing.url}group?name={group}")
        browser.wait("the buttons", "return document.querySelector('.changes > button').checkVisibility()")
        browser.click(".changes > button")
        browser.press(*"1200", "\ue007")
        browser.wait_text("Set 1 partition", "dialog[open]")
        assert re.search(r"66\s+1,200\s+\+1,134", browser.texts("dialog[open] tbody")[0])
        browser.screenshot(PICTURES / "reset.png")
        browser.click("dialog[open] .primary")
        browser.wait("the new lag", "return document.querySelector('dl dd').innerText === '100'")
        decision = OffsetAndMetadata(0, '{"headrace.sink": 1, "sequence": 1}')
        with KafkaAdmin(bootstrap_servers=servers) as ours:
            ours.alter_offsets(group, {TopicPartition("__consumer_offsets", 7): decision})
        browser.click(".changes > button:nth-of-type(2)")
        browser.wait_text("without them, its query stops, or writes a batch twice", "dialog[open]")
        browser.press(*"something else", "\ue007")
        browser.wait_text("confirm must be the name of the group", "dialog[open]")
        browser.run("document.querySelector('dialog[open] input').select()")
        browser.press(*group, "\ue007")
        browser.wait_text(f"There is no group {group}", "main")
    assert [it for it in browser.complaints() if " 400 " not in it] == []


def test_a_link_with_a_token_signs_in(browser: Browser, servers: str) -> None:
    options = PageOptions({"bootstrap.servers": servers}, port=0, secrets=("a-token",))
    with BackgroundPage(options) as page:
        browser.open(f"{page.url}topics")
        browser.wait_text("Password or token", "form")
        browser.open(f"{page.url}login?next=%2Ftopics#a-token")
        browser.wait_text("Topics", "h1")
        assert browser.run("return location.href") == f"{page.url}topics"
