"""Which version is spoken."""

from __future__ import annotations

import pytest

from headrace._protocol.messages import API_VERSIONS, FETCH, OFFSET_COMMIT
from headrace._protocol.versions import BrokerVersions, next_api_versions_attempt
from headrace.errors import UnsupportedVersionError
from support.brokers.fake_broker import api_versions


def broker(low: int, high: int) -> BrokerVersions:
    return BrokerVersions("kafka-1:9092", {FETCH.key: (low, high)})


@pytest.mark.parametrize(
    ("low", "high", "highest", "picked"),
    [
        pytest.param(4, 18, None, 18, id="both know the same"),
        pytest.param(4, 25, None, 18, id="a newer broker"),
        pytest.param(4, 15, None, 15, id="an older broker"),
        pytest.param(18, 25, None, 18, id="just in reach of a much newer broker"),
        pytest.param(0, 13, None, 13, id="just in reach of an old one"),
        pytest.param(4, 18, 14, 14, id="the caller wants no higher"),
        pytest.param(4, 13, 14, 13, id="and the broker cannot either"),
        pytest.param(4, 18, 99, 18, id="no higher than headrace knows"),
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


@pytest.mark.parametrize(
    ("told", "following"),
    [
        pytest.param({18: (0, 3)}, 3, id="the broker's own highest"),
        pytest.param({18: (0, 0)}, 0, id="a very old broker"),
        pytest.param({}, 0, id="one that does not even tell"),
        pytest.param({18: (0, 4)}, None, id="the same again makes no sense"),
        pytest.param({18: (5, 9)}, None, id="nor does one that headrace does not know"),
    ],
)
def test_after_unsupported_version_the_broker_s_version_is_tried(
    told: dict[int, tuple[int, int]], following: int | None
) -> None:
    assert next_api_versions_attempt(API_VERSIONS.highest, api_versions(0, told, error_code=35)) == following
