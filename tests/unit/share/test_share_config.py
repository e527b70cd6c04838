"""ShareConsumerConfig: parsing and validation."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.config.consumer import ConsumerConfig
from headrace.config.share import OWN, REFUSED, ShareConsumerConfig
from headrace.errors import ConfigError

GIVEN = {"bootstrap.servers": "b:1", "group.id": "g"}


def test_a_share_consumer_has_kafka_s_defaults() -> None:
    config = ShareConsumerConfig.parse(GIVEN)
    assert (config.share_acknowledgement_mode, config.share_acquire_mode, config.renew) == (
        "implicit",
        "batch_optimized",
        "manual",
    )
    assert (config.max_poll_records, config.fetch_max_wait_ms, config.group_id) == (500, 500, "g")


@pytest.mark.parametrize("text", ["record_limit", "RECORD_LIMIT", " Record_Limit "])
def test_acquire_modes_are_accepted_in_any_case(text: str) -> None:
    assert ShareConsumerConfig.parse(GIVEN, share_acquire_mode=text).share_acquire_mode == "record_limit"


@pytest.mark.parametrize("value", ["strict", "", None, 5])
def test_invalid_acquire_modes_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"share\.acquire\.mode=.*must be batch_optimized or record_limit"):
        ShareConsumerConfig.parse(GIVEN, share_acquire_mode=value)


@pytest.mark.parametrize("name", REFUSED)
def test_settings_without_meaning_for_share_groups_are_refused_with_the_reason(name: str) -> None:
    assert name in {field.name for field in dataclasses.fields(ConsumerConfig)}
    with pytest.raises(ConfigError) as caught:
        ShareConsumerConfig.parse(GIVEN | {name.replace("_", "."): "x"})
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share.aquire.mode": "x"}, "did you mean share.acquire.mode?"),
        ({"share_aquire_mode": "x"}, "did you mean share_acquire_mode?"),
        ({"max.pol.records": "5"}, "unknown setting max.pol.records: did you mean max.poll.records?"),
        ({"renew": "auto", "nonsense": 1}, "unknown setting nonsense"),
        ({"max.poll.records": "-1"}, "at least 1"),
        ({"max.poll.records": "0"}, "at least 1"),
        ({"group.id": None}, "group.id is missing"),
    ],
)
def test_mistakes_in_settings_of_a_share_consumer_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ShareConsumerConfig.parse(GIVEN | settings)
    assert message in str(caught.value)


def test_a_share_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        ShareConsumerConfig.parse(GIVEN | {"share.acquire.mode": "record_limit"}, share_acquire_mode="record_limit")


def test_a_plain_consumer_refuses_share_settings() -> None:
    for name in OWN:
        with pytest.raises(ConfigError):
            ConsumerConfig.parse(GIVEN, **{name: "x"})
