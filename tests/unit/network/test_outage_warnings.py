"""When a client warns about an unreachable broker."""

from __future__ import annotations

from headrace._machines.outage_warnings import EVERY, PATIENCE, OutageWarnings

NAME = "broker:9092"


def test_a_warning_comes_after_a_few_seconds_and_then_once_a_minute() -> None:
    outages = OutageWarnings()
    warned = []
    for second in range(200):
        outages.tries(NAME, second)
        if (seconds := outages.to_warn_of(NAME, second + 0.5)) is not None:
            warned.append((second, seconds))
    assert warned == [(3, 3.5), (63, 63.5), (123, 123.5), (183, 183.5)]
    assert outages.ends(NAME, 200.0) == 200.0
    assert outages.to_warn_of(NAME, 300.0) is None


def test_a_short_outage_is_not_worth_a_word() -> None:
    outages = OutageWarnings()
    outages.tries(NAME, 10.0)
    assert outages.to_warn_of(NAME, 10.0 + PATIENCE - 0.1) is None
    assert outages.ends(NAME, 12.0) is None
    outages.tries(NAME, 13.0)
    assert outages.to_warn_of(NAME, 15.0) is None, "a new outage"


def test_an_outage_that_nobody_tried_for_long_begins_anew() -> None:
    outages = OutageWarnings()
    outages.tries(NAME, 10.0)
    outages.tries(NAME, 11.0 + EVERY)
    assert outages.to_warn_of(NAME, 12.0 + EVERY) is None
    assert outages.to_warn_of(NAME, 11.0 + EVERY + PATIENCE) == PATIENCE
    assert outages.ends(NAME, 20.0 + EVERY) == 9.0


def test_each_broker_has_its_own_outage() -> None:
    outages = OutageWarnings()
    for name in "ab":
        outages.tries(name, 0.0)
    assert outages.to_warn_of("a", 5.0) == 5.0
    assert outages.to_warn_of("a", 6.0) is None
    assert outages.to_warn_of("b", 6.0) == 6.0
