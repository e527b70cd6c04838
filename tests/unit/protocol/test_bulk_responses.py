"""The fast readers of responses about many partitions agree with the general reader, and leave the rest to it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._protocol.bulk_responses import BulkCommit, BulkLog, BulkOffset
from headrace._protocol.messages import LIST_OFFSETS, METADATA, OFFSET_FETCH, Api, decode_response, encode_request
from headrace._protocol.survey_messages import ALL_METADATA, MANY_COMMITS, MANY_OFFSETS, SURVEY_APIS
from headrace.errors import ProtocolError
from support.brokers.fake_broker import answer, frame

OFFSETS = st.integers(-1, 2**62)
NUMBERS = st.integers(0, 2**31 - 1)
CODES = st.sampled_from([0, 0, 0, 3, 6])
NAMES = st.text("abcå.-", min_size=1, max_size=200)
NODES = st.lists(st.integers(1, 9), max_size=3)

listed = st.fixed_dictionaries(
    {
        "partition_index": NUMBERS,
        "error_code": CODES,
        "timestamp": OFFSETS,
        "offset": OFFSETS,
        "leader_epoch": st.integers(-1, 9),
    }
)
committed = st.fixed_dictionaries(
    {
        "partition_index": NUMBERS,
        "committed_offset": OFFSETS,
        "committed_leader_epoch": st.integers(-1, 9),
        "metadata": st.sampled_from(["", "", "", None, "x", "headrace/2"]),
        "error_code": CODES,
    }
)
log = st.fixed_dictionaries(
    {
        "error_code": CODES,
        "partition_index": NUMBERS,
        "leader_id": st.integers(-1, 9),
        "leader_epoch": st.integers(-1, 9),
        "replica_nodes": NODES,
        "isr_nodes": NODES,
        "offline_replicas": NODES,
    }
)


NOT_THROTTLED = 0


def response(api: Api, version: int, **fields: Any) -> bytes:
    """Without the length before it."""
    return frame(7, answer(api, version, **{"throttle_time": NOT_THROTTLED, **fields}))[4:]


def lists(item: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(item, max_size=4)


def topics_of(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    # Equal items as well: those are unpacked at once.
    repeated = st.tuples(items, st.integers(0, 200)).map(lambda it: [it[0]] * it[1])
    return lists(st.fixed_dictionaries({"name": NAMES, "partitions": lists(items) | repeated}))


BODIES: dict[Api, tuple[Api, st.SearchStrategy[Any]]] = {
    LIST_OFFSETS: (MANY_OFFSETS, st.fixed_dictionaries({"topics": topics_of(listed)})),
    OFFSET_FETCH: (
        MANY_COMMITS,
        st.fixed_dictionaries(
            {
                "groups": lists(
                    st.fixed_dictionaries({"group_id": NAMES, "topics": topics_of(committed), "error_code": CODES})
                )
            }
        ),
    ),
    METADATA: (
        ALL_METADATA,
        st.fixed_dictionaries(
            {
                "brokers": lists(
                    st.fixed_dictionaries(
                        {"node_id": NUMBERS, "host": NAMES, "port": NUMBERS, "rack": st.none() | NAMES}
                    )
                ),
                "cluster_id": st.none() | NAMES,
                "controller_id": NUMBERS,
                "error_code": CODES,
                "topics": topics_of(log).flatmap(
                    lambda topics: st.fixed_dictionaries(
                        {
                            "all": st.just(topics),
                            "id": st.none() | st.uuids(),
                            "internal": st.booleans(),
                            "error_code": CODES,
                        }
                    ).map(
                        lambda it: [
                            {
                                **topic,
                                "topic_id": it["id"],
                                "is_internal": it["internal"],
                                "error_code": it["error_code"],
                            }
                            for topic in it["all"]
                        ]
                    )
                ),
            }
        ),
    ),
}
VERSIONS = [(api, version) for api, (bulk, _) in BODIES.items() for version in range(bulk.lowest, bulk.highest + 1)]


def check_same(quick: Any, slow: Any) -> None:
    """Compares the fields that the fast reader's results have."""
    if hasattr(quick, "_fields"):
        for name in {*quick._fields, "metadata"} - {"tags", "metadata_size", "throttle_time"}:
            if hasattr(slow, name):
                check_same(getattr(quick, name), getattr(slow, name))
    elif isinstance(quick, list | tuple):
        assert len(quick) == len(slow)
        for one, other in zip(quick, slow, strict=True):
            check_same(one, other)
    elif dataclasses.is_dataclass(quick) and not isinstance(quick, type):
        assert dataclasses.asdict(quick) == dataclasses.asdict(slow)  # of another version, with the same fields
    else:
        assert (quick or None) == (slow or None)  # the text of a missing commit metadata is empty


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_both_readers_agree(api: Api, version: int, data: st.DataObject) -> None:
    bulk, bodies = BODIES[api]
    raw = memoryview(response(api, version, **data.draw(bodies)))
    assert bulk.read_usual is not None
    quick = bulk.read_usual(version, raw)
    assert quick is not None
    check_same(quick, decode_response(api, version, raw))


LISTED = {"partition_index": 1, "error_code": 0, "timestamp": -1, "offset": 5, "leader_epoch": 2}
COMMITTED = {
    "partition_index": 1,
    "committed_offset": 5,
    "committed_leader_epoch": -1,
    "metadata": "",
    "error_code": 0,
}
LOG = {
    "error_code": 0,
    "partition_index": 1,
    "leader_id": 1,
    "leader_epoch": 2,
    "replica_nodes": [1, 2, 3],
    "isr_nodes": [3, 1],
    "offline_replicas": [],
}


def topic(item: dict[str, Any], count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "t", "partitions": [{**item, "partition_index": n} for n in range(count)], **more}]


def offsets(count: int, **other: Any) -> bytes:
    return response(LIST_OFFSETS, 11, topics=topic(LISTED, count), **other)


def commits(count: int) -> bytes:
    return response(OFFSET_FETCH, 9, groups=[{"group_id": "g", "error_code": 0, "topics": topic(COMMITTED, count)}])


def metadata(count: int) -> bytes:
    more = {"error_code": 0, "topic_id": uuid.UUID(int=5)}
    return response(METADATA, 13, brokers=[], topics=topic(LOG, count, **more), error_code=0)


@pytest.mark.parametrize(
    ("raw", "read", "kind"),
    [
        (offsets(200), lambda raw: decode_response(MANY_OFFSETS, 11, raw).topics[0], BulkOffset),
        (commits(200), lambda raw: decode_response(MANY_COMMITS, 9, raw).groups[0].topics[0], BulkCommit),
        (metadata(200), lambda raw: decode_response(ALL_METADATA, 13, raw).topics[0], BulkLog),
    ],
    ids=["ListOffsets", "OffsetFetch", "Metadata"],
)
def test_uniform_partitions_are_unpacked_at_once(
    raw: bytes, read: Callable[[memoryview], Any], kind: type[Any]
) -> None:
    found = read(memoryview(raw)).partitions
    assert len(found) == 200
    assert {type(each) for each in found} == {kind}


def test_a_throttled_response_is_left_to_the_general_reader() -> None:
    raw = memoryview(offsets(3, throttle_time=100))
    assert MANY_OFFSETS.read_usual is not None
    assert MANY_OFFSETS.read_usual(11, raw) is None
    assert decode_response(MANY_OFFSETS, 11, raw).throttle_time.total_seconds() == 0.1


def test_responses_of_newer_brokers_are_left_to_the_general_reader() -> None:
    body = answer(LIST_OFFSETS, 11, topics=topic(LISTED, 1), throttle_time=NOT_THROTTLED)
    raw = memoryview(frame(7, body, unknown_tags=True))[4:]
    assert MANY_OFFSETS.read_usual is not None
    assert MANY_OFFSETS.read_usual(11, raw) is None
    assert decode_response(MANY_OFFSETS, 11, raw).topics[0].partitions[0].offset == 5


@pytest.mark.parametrize(
    ("api", "raw", "last_item_ends"),
    [(MANY_OFFSETS, offsets(2), 3), (MANY_COMMITS, commits(2), 6), (ALL_METADATA, metadata(2), 9)],
    ids=["ListOffsets", "OffsetFetch", "Metadata"],
)
def test_a_partition_with_tagged_fields_is_not_unpacked_with_the_others(
    api: Api, raw: bytes, last_item_ends: int
) -> None:
    assert api.read_usual is not None
    assert api.read_usual(api.highest, memoryview(raw)) is not None
    tagged = bytearray(raw)
    assert tagged[-last_item_ends] == 0
    tagged[-last_item_ends] = 1  # and nothing that follows is one
    assert api.read_usual(api.highest, memoryview(tagged)) is None


@pytest.mark.parametrize("size", range(len(offsets(2))))
def test_a_truncated_response_is_an_error_of_the_protocol(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_response(MANY_OFFSETS, 11, memoryview(offsets(2)[:size]))


@pytest.mark.parametrize("bulk", [MANY_OFFSETS, MANY_COMMITS, ALL_METADATA], ids=str)
@given(raw=st.binary(max_size=60), zeros=st.integers(0, 9))
def test_random_bytes_are_never_an_error_of_the_fast_reader(bulk: Api, raw: bytes, zeros: int) -> None:
    assert bulk.read_usual is not None
    bulk.read_usual(bulk.highest, memoryview(bytes(zeros) + raw))


@pytest.mark.parametrize("api", SURVEY_APIS, ids=str)
def test_every_version_of_the_requests_can_be_written(api: Api) -> None:
    fields = {"topics": None, "group_ids": ("g",), "include_authorized_operations": False}
    for version in range(api.lowest, api.highest + 1):
        assert encode_request(api, version, 1, "me", fields)
