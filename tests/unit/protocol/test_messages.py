"""Requests, decoded by kio in every version that headrace supports."""

from __future__ import annotations

import array
import datetime
import struct
import tracemalloc
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema

from headrace._protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    APIS,
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
    Api,
    correlation_id_of,
    encode_request,
    exactly_one,
)
from headrace.errors import EncodingError, ProtocolError
from support.brokers.fake_broker import read_request
from support.brokers.kio_entities import build

TOPIC = uuid.UUID(int=7)
PRODUCER = {"transactional_id": "tx", "producer_id": 7, "producer_epoch": 3}
ACKS = {"first_offset": 3, "last_offset": 5, "acknowledge_types": (1, 2, 0)}

# One description of each request, for all of its versions.
FIELDS: dict[Api, dict[str, Any]] = {
    SASL_HANDSHAKE: {"mechanism": "PLAIN"},
    SASL_AUTHENTICATE: {"auth_bytes": b"\0me\0secret"},
    FETCH: {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 1,
        "session_id": 3,
        "session_epoch": 4,
        "topics": [
            {
                "topic_id": TOPIC,
                "partitions": [
                    {"partition": 2, "current_leader_epoch": 5, "fetch_offset": 99, "partition_max_bytes": 100}
                ],
            }
        ],
        "forgotten_topics_data": [{"topic_id": TOPIC, "partitions": [1, 2]}],
        "rack_id": "r",
    },
    LIST_OFFSETS: {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1500,
        "topics": [{"name": "t", "partitions": [{"partition_index": 1, "current_leader_epoch": 2, "timestamp": -1}]}],
    },
    JOIN_GROUP: {
        "group_id": "g",
        "session_timeout": 45_000,
        "rebalance_timeout": 300_000,
        "member_id": "m",
        "group_instance_id": "i",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"blob"}],
        "reason": "why",
    },
    SYNC_GROUP: {
        "group_id": "g",
        "generation_id": 3,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": "m", "assignment": b"blob"}],
    },
    HEARTBEAT: {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": None},
    LEAVE_GROUP: {
        "group_id": "g",
        "members": [{"member_id": "m", "group_instance_id": None, "reason": "why"}],
    },
    CONSUMER_GROUP_HEARTBEAT: {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 4,
        "instance_id": None,
        "rack_id": "r",
        "rebalance_timeout": -1,
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [{"topic_id": TOPIC, "partitions": [0, 1]}],
    },
    SHARE_GROUP_HEARTBEAT: {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 4,
        "rack_id": None,
        "subscribed_topic_names": ["t"],
    },
    SHARE_FETCH: {
        "group_id": "g",
        "member_id": "m",
        "share_session_epoch": 4,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "max_records": 6,
        "batch_size": 2,
        "share_acquire_mode": 1,
        "is_renew_ack": False,
        "topics": [{"topic_id": TOPIC, "partitions": [{"partition_index": 2, "acknowledgement_batches": [ACKS]}]}],
        "forgotten_topics_data": [{"topic_id": TOPIC, "partitions": [1, 2]}],
    },
    SHARE_ACKNOWLEDGE: {
        "group_id": "g",
        "member_id": "m",
        "share_session_epoch": -1,
        "is_renew_ack": True,
        "topics": [{"topic_id": TOPIC, "partitions": [{"partition_index": 2, "acknowledgement_batches": [ACKS]}]}],
    },
    METADATA: {
        "topics": [{"topic_id": None, "name": "t"}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    },
    OFFSET_COMMIT: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            {
                "name": "t",
                "topic_id": TOPIC,
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 5,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "m",
                    }
                ],
            }
        ],
    },
    OFFSET_FETCH: {
        "groups": [
            {
                "group_id": "g",
                "member_id": None,
                "member_epoch": -1,
                "topics": [{"name": "t", "topic_id": TOPIC, "partition_indexes": [0, 1]}],
            }
        ],
        "require_stable": True,
    },
    FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": ("g",)},
    API_VERSIONS: {"client_software_name": "headrace", "client_software_version": "1"},
    OFFSET_DELETE: {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]},
    OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": [{"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": 2, "leader_epoch": 1}]}],
    },
    PRODUCE: {
        "transactional_id": "tx",
        "acks": -1,
        "timeout": 30_000,
        "topic_data": [
            {
                "name": "t",
                "topic_id": TOPIC,
                "partition_data": [{"index": 2, "records": b"batch"}, {"index": 3, "records": None}],
            }
        ],
    },
    INIT_PRODUCER_ID: {**PRODUCER, "transaction_timeout": 60_000, "enable2_pc": True, "keep_prepared_txn": True},
    ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": "tx",
        "v3_and_below_producer_id": 7,
        "v3_and_below_producer_epoch": 3,
        "v3_and_below_topics": [{"name": "t", "partitions": [0, 1]}],
    },
    ADD_OFFSETS_TO_TXN: {**PRODUCER, "group_id": "g"},
    END_TXN: {**PRODUCER, "committed": True},
    TXN_OFFSET_COMMIT: {
        **PRODUCER,
        "group_id": "g",
        "generation_id": 4,
        "member_id": "m",
        "group_instance_id": None,
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 5,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "m",
                    }
                ],
            }
        ],
    },
    DESCRIBE_PRODUCERS: {"topics": [{"name": "t", "partition_indexes": [0, 1]}]},
    DESCRIBE_TRANSACTIONS: {"transactional_ids": ["tx"]},
    LIST_TRANSACTIONS: {
        "state_filters": ["Ongoing"],
        "producer_id_filters": [7],
        "duration_filter": -1,
        "transactional_id_pattern": "tx.*",
    },
}


def sent(api: Api, version: int, fields: dict[str, Any]) -> Any:
    raw = encode_request(api, version, 42, "me", fields)
    assert struct.unpack_from(">i", raw)[0] == len(raw) - 4
    request = read_request(bytes(raw[4:]))
    assert (request.api_key, request.version, request.correlation_id) == (api.key, version, 42)
    assert request.client_id == "me"
    return request.body


@pytest.mark.parametrize(
    ("api", "version"), [(api, version) for api in APIS for version in range(api.lowest, api.highest + 1)], ids=str
)
def test_a_request_is_encoded_in_every_version_as_kio_reads_it(api: Api, version: int) -> None:
    body = sent(api, version, FIELDS[api])
    assert body == build(load_request_schema(api.key, version), FIELDS[api])


def test_a_fetch_request_has_its_settings_and_partitions() -> None:
    body = sent(FETCH, 18, FIELDS[FETCH])
    assert body.max_wait == datetime.timedelta(milliseconds=500)
    assert (body.session_id, body.session_epoch, body.isolation_level, body.rack_id) == (3, 4, 1, "r")
    (topic,) = body.topics
    (partition,) = topic.partitions
    assert (topic.topic_id, partition.partition, partition.fetch_offset) == (TOPIC, 2, 99)
    assert (partition.current_leader_epoch, partition.last_fetched_epoch) == (5, -1)
    assert body.forgotten_topics_data[0].partitions == (1, 2)


def test_requests_of_a_consumer_have_replica_id_minus_one() -> None:
    """-1 means consumer; kio's default for OffsetForLeaderEpoch is -2."""
    assert sent(FETCH, 14, FIELDS[FETCH]).replica_id == -1
    assert sent(FETCH, 18, FIELDS[FETCH]).replica_state.replica_id == -1
    assert sent(OFFSET_FOR_LEADER_EPOCH, 4, FIELDS[OFFSET_FOR_LEADER_EPOCH]).replica_id == -1
    assert sent(LIST_OFFSETS, 11, FIELDS[LIST_OFFSETS]).replica_id == -1


@pytest.mark.parametrize(
    ("version", "has", "has_not"), [(9, "name", "topic_id"), (10, "topic_id", "name")], ids=["v9", "v10"]
)
def test_offset_requests_have_topic_names_or_ids_by_version(version: int, has: str, has_not: str) -> None:
    for api in (OFFSET_COMMIT, OFFSET_FETCH):
        body = sent(api, version, FIELDS[api])
        (topic,) = body.topics if api is OFFSET_COMMIT else body.groups[0].topics
        assert getattr(topic, has) in ("t", TOPIC)
        assert not hasattr(topic, has_not)


def test_metadata_requests_distinguish_all_topics_from_none() -> None:
    rest = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    assert sent(METADATA, 13, {"topics": None, **rest}).topics is None
    assert sent(METADATA, 13, {"topics": [], **rest}).topics == ()


def produce(records: Any) -> dict[str, Any]:
    topic = {"name": "t", "topic_id": TOPIC, "partition_data": [{"index": 0, "records": records}]}
    return {"acks": 1, "timeout": 5, "topic_data": [topic]}


@pytest.mark.parametrize("version", range(PRODUCE.lowest, PRODUCE.highest + 1))
def test_produce_requests_have_topic_names_or_ids_by_version(version: int) -> None:
    body = sent(PRODUCE, version, produce(b"batch"))
    (topic,) = body.topic_data
    assert getattr(topic, "topic_id", None) == (TOPIC if version >= 13 else None)
    assert getattr(topic, "name", None) == ("t" if version < 13 else None)


@pytest.mark.parametrize(
    "records",
    [
        b"batch",
        bytearray(b"batch"),
        memoryview(b"a batch")[2:],
        memoryview(bytearray(b"batch")).toreadonly(),
        memoryview(b"batch").cast("c"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_are_any_object_with_a_buffer(records: Any) -> None:
    assert sent(PRODUCE, 13, produce(records)).topic_data[0].partition_data[0].records == b"batch"


def test_records_of_wider_items_are_sent_as_their_bytes() -> None:
    numbers = array.array("i", range(1000))
    assert sent(PRODUCE, 13, produce(numbers)).topic_data[0].partition_data[0].records == numbers.tobytes()


@pytest.mark.parametrize("records", [5, "text", [1]])
def test_records_without_a_buffer_are_refused(records: Any) -> None:
    with pytest.raises(EncodingError, match="records of PartitionProduceData cannot be"):
        encode_request(PRODUCE, 13, 1, None, produce(records))


def test_records_are_copied_once_into_the_frame() -> None:
    records = bytes(8_000_000)
    encode_request(PRODUCE, 13, 1, None, produce(b""))
    tracemalloc.start()
    try:
        frame = encode_request(PRODUCE, 13, 1, None, produce(records))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(frame) > len(records)
    assert peak < 1.5 * len(records), "the records were copied a second time"


def commit_of(**changes: Any) -> dict[str, Any]:
    item = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": "t", "topic_id": TOPIC, "partitions": [item | changes]}]
    return {**FIELDS[OFFSET_COMMIT], "topics": topics}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("committed_offset", 2**63),
        ("committed_offset", 1.5),
        ("committed_offset", None),
        ("committed_offset", "5"),
        ("partition_index", 2**31),
        ("partition_index", -(2**31) - 1),
        ("committed_metadata", 5),
        ("committed_metadata", b"x"),
        ("committed_metadata", "\ud800"),
        ("committed_metadata", "m" * 2**15),
    ],
)
def test_the_error_of_a_value_that_cannot_be_encoded_names_its_field(field: str, value: Any) -> None:
    for version in range(OFFSET_COMMIT.lowest, OFFSET_COMMIT.highest + 1):
        with pytest.raises(
            EncodingError, match=rf"^cannot encode the request OffsetCommit: {field} of \w+ cannot be "
        ) as caught:
            encode_request(OFFSET_COMMIT, version, 1, None, commit_of(**{field: value}))
        assert not caught.value.retriable
        assert len(str(caught.value)) < 400
    encode_request(OFFSET_COMMIT, 9, 1, None, commit_of(committed_metadata="m" * (2**15 - 1)))


@pytest.mark.parametrize("value", [5, "text", [1], None])
def test_a_bytes_field_refuses_other_types(value: Any) -> None:
    with pytest.raises(EncodingError, match="auth_bytes"):
        encode_request(SASL_AUTHENTICATE, 2, 1, None, {"auth_bytes": value})


@pytest.mark.parametrize("client_id", ["c" * 2**15, "\ud800", 5])
def test_a_client_id_that_cannot_be_encoded_is_refused(client_id: Any) -> None:
    with pytest.raises(EncodingError, match="client_id"):
        encode_request(METADATA, 13, 1, client_id, FIELDS[METADATA])


def test_a_missing_field_of_a_request_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="topics"):
        encode_request(METADATA, 13, 1, None, {})


def test_a_tagged_field_of_a_request_is_refused() -> None:
    with pytest.raises(TypeError, match="cluster_id"):
        encode_request(FETCH, 18, 1, None, {**FIELDS[FETCH], "cluster_id": "c"})


def test_a_request_may_have_no_client_id() -> None:
    raw = encode_request(API_VERSIONS, 4, 1, None, FIELDS[API_VERSIONS])
    assert read_request(bytes(raw[4:])).client_id is None


def test_a_response_begins_with_its_correlation_id() -> None:
    assert correlation_id_of(memoryview(b"\0\0\0\x2aabc")) == 42
    with pytest.raises(ProtocolError, match="3 bytes"):
        correlation_id_of(memoryview(b"\0\0\0"))


@pytest.mark.parametrize("items", [(), (1, 2)])
def test_a_response_with_none_or_several_entries_instead_of_one_is_an_error(items: tuple[int, ...]) -> None:
    assert exactly_one((7,), "FindCoordinator of group g") == 7
    with pytest.raises(
        ProtocolError, match=f"FindCoordinator of group g: the response has {len(items)} entries instead of 1"
    ):
        exactly_one(items, "FindCoordinator of group g")
