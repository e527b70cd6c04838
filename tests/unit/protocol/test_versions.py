"""Version negotiation: which version of a request is used."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    SHARE_FETCH,
    TXN_OFFSET_COMMIT,
    Api,
    decode_response,
)
from headrace._protocol.versions import BrokerVersions, next_api_versions_attempt
from headrace.errors import UnsupportedVersionError
from support.brokers.fake_broker import answer, api_versions, frame


def broker(low: int, high: int) -> BrokerVersions:
    return BrokerVersions("kafka-1:9092", {FETCH.key: (low, high)})


@pytest.mark.parametrize(
    ("low", "high", "highest", "picked"),
    [
        pytest.param(4, 18, None, 18, id="the same versions"),
        pytest.param(4, 25, None, 18, id="a newer broker"),
        pytest.param(4, 15, None, 15, id="an older broker"),
        pytest.param(18, 25, None, 18, id="barely compatible with a much newer broker"),
        pytest.param(0, 13, None, 13, id="barely compatible with an old broker"),
        pytest.param(4, 18, 14, 14, id="the caller sets a lower limit"),
        pytest.param(4, 13, 14, 13, id="the broker has a lower limit than the caller"),
        pytest.param(4, 18, 99, 18, id="no higher than headrace's own"),
    ],
)
def test_the_highest_common_version_is_picked(low: int, high: int, highest: int | None, picked: int) -> None:
    assert broker(low, high).pick(FETCH, highest) == picked


@pytest.mark.parametrize(
    ("low", "high", "advice"),
    [
        pytest.param(0, 12, "upgrade the broker", id="too old"),
        pytest.param(19, 30, "upgrade headrace", id="too new"),
    ],
)
def test_no_common_version_is_an_error_with_advice(low: int, high: int, advice: str) -> None:
    with pytest.raises(
        UnsupportedVersionError, match=rf"kafka-1:9092 supports Fetch versions {low} to {high}"
    ) as error:
        broker(low, high).pick(FETCH)
    assert advice in str(error.value)
    assert not error.value.retriable


def test_picking_a_version_of_an_unknown_request_is_an_error() -> None:
    with pytest.raises(UnsupportedVersionError, match="kafka-1:9092 does not support the request OffsetCommit"):
        broker(4, 18).pick(OFFSET_COMMIT)


def test_version_ranges_are_those_of_the_api_versions_response() -> None:
    found = BrokerVersions.from_response("h:1", api_versions(4, {1: (4, 18), 999: (0, 0)}))
    assert found.ranges == {1: (4, 18), 999: (0, 0)}


FEATURES = [
    {"name": "transaction.version", "max_version_level": 2, "min_version_level": 1},
    {"name": "group.version", "max_version_level": 1, "min_version_level": 1},
]


@pytest.mark.parametrize("version", [3, 4])
def test_features_are_the_finalized_ones_of_the_api_versions_response(version: int) -> None:
    fields = {"error_code": 0, "api_keys": (), "throttle_time": 0, "finalized_features": FEATURES}
    supported = [{"name": "transaction.version", "min_version": 0, "max_version": 3}]
    response = answer(API_VERSIONS, version, **fields, supported_features=supported, finalized_features_epoch=12)
    found = BrokerVersions.from_response("h:1", decoded(response, version))
    assert found.features == {"transaction.version": 2, "group.version": 1}
    assert found.features_epoch == 12
    assert found.features.get("share.version", 0) == 0
    # A broker that has not loaded the features yet.
    response = answer(API_VERSIONS, version, **fields, finalized_features_epoch=-1)
    found = BrokerVersions.from_response("h:1", decoded(response, version))
    assert (found.features, found.features_epoch) == ({}, -1)


@pytest.mark.parametrize("version", range(API_VERSIONS.highest + 1))
def test_a_broker_without_finalized_features_has_none(version: int) -> None:
    found = BrokerVersions.from_response("h:1", decoded(api_versions(version), version))
    assert (found.features, found.features_epoch) == ({}, -1)
    assert found.features.get("transaction.version", 0) == 0


def decoded(response: Any, version: int) -> Any:
    return decode_response(API_VERSIONS, version, memoryview(frame(1, response)[4:]))


@pytest.mark.parametrize("two_phase", [False, True])
def test_init_producer_id_is_stable_up_to_version_5(two_phase: bool) -> None:
    new = BrokerVersions("h:1", {INIT_PRODUCER_ID.key: (0, 6)})
    assert new.pick(INIT_PRODUCER_ID, None if two_phase else 5) == (6 if two_phase else 5)


@pytest.mark.parametrize(
    ("api", "oldest"),
    # The versions of Kafka 3.1.
    [
        (PRODUCE, 9),
        (INIT_PRODUCER_ID, 4),
        (ADD_PARTITIONS_TO_TXN, 3),
        (ADD_OFFSETS_TO_TXN, 3),
        (END_TXN, 3),
        (TXN_OFFSET_COMMIT, 3),
        (DESCRIBE_PRODUCERS, 0),
        (DESCRIBE_TRANSACTIONS, 0),
        (LIST_TRANSACTIONS, 0),
    ],
    ids=str,
)
def test_requests_of_producers_have_a_version_for_kafka_3_1(api: Api, oldest: int) -> None:
    assert BrokerVersions("h:1", {api.key: (0, oldest)}).pick(api) == oldest


@pytest.mark.parametrize(
    ("ranges", "following"),
    [
        pytest.param({18: (0, 3)}, 3, id="the broker's own highest"),
        pytest.param({18: (0, 0)}, 0, id="a very old broker"),
        pytest.param({}, 0, id="a broker without version ranges"),
        pytest.param({18: (0, 4)}, None, id="the same version is not retried"),
        pytest.param({18: (5, 9)}, None, id="a version that headrace does not support"),
    ],
)
def test_after_unsupported_version_the_broker_s_version_is_tried(
    ranges: dict[int, tuple[int, int]], following: int | None
) -> None:
    assert next_api_versions_attempt(API_VERSIONS.highest, api_versions(0, ranges, error_code=35)) == following


def test_the_error_names_the_first_kafka_with_the_request() -> None:
    """Kafka 3.9 has an early version of KIP-848 groups."""
    early = BrokerVersions("kafka-1:9092", {CONSUMER_GROUP_HEARTBEAT.key: (0, 0)})
    with pytest.raises(UnsupportedVersionError, match=r"upgrade the broker \(Kafka 4\.0 or later\)"):
        early.pick(CONSUMER_GROUP_HEARTBEAT)
    with pytest.raises(UnsupportedVersionError, match=r"ShareFetch: it needs Kafka 4\.1 or later"):
        early.pick(SHARE_FETCH)


def test_the_error_says_what_else_a_service_lacks() -> None:
    """The ranges that Azure Event Hubs publishes."""
    ranges = {0: (0, 7), 1: (4, 6), 2: (0, 8), 3: (0, 5), 8: (0, 8), 9: (0, 8), 10: (0, 4), 11: (0, 9)}
    with pytest.raises(UnsupportedVersionError) as error:
        BrokerVersions("hubs:9093", ranges).pick(METADATA)
    assert str(error.value) == (
        "the broker at hubs:9093 supports Metadata versions 0 to 5, headrace 12 to 13. It also lacks Produce 9 (it has "
        "7), Fetch 13 (it has 6): upgrade the broker (Kafka 3.1 or later). A service that is not Apache Kafka, such as "
        "Azure Event Hubs, cannot be used without these versions"
    )
