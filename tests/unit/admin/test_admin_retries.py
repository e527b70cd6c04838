"""Changes of an admin client when responses are lost, late or incomplete."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace import AsyncAdmin, OffsetAndMetadata, TopicPartition
from headrace._protocol.admin_messages import (
    ADMIN_APIS,
    ALTER_SHARE_GROUP_OFFSETS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_GROUPS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    LIST_GROUPS,
)
from headrace._protocol.messages import (
    API_VERSIONS,
    APIS,
    FIND_COORDINATOR,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Api,
)
from headrace.admin import OffsetChange, ResetPlan
from headrace.errors import AuthorizationError, KafkaError, PartialFailureError, ProtocolError, RequestTimeoutError
from support.brokers.fake_broker import FakeBroker, Link, Request, answer, api_versions, run
from support.harness.retries import patiently

RANGES = {api.key: (api.lowest, api.highest) for api in (*APIS, *ADMIN_APIS)}
TOPIC = uuid.uuid4()
NO_ERROR = {"error_code": 0, "error_message": None}
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)

Answer = Callable[[Request], Any]
"""The response to a request, or None to close the connection."""


class Script:
    """A broker that coordinates every group and leads every partition. Other requests are answered by `answers`, in
    order, and the last one again and again. `others` are the ports of the brokers that are asked before it."""

    def __init__(self, *answers: Answer, others: Mapping[int, int] | None = None) -> None:
        self.answers = list(answers)
        self.others = others or {}
        self.requests: list[Any] = []

    async def serve(self, broker: FakeBroker) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._serve(broker, await broker.accept()))

    async def _serve(self, broker: FakeBroker, link: Link) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await link.receive()
                reply = self._reply(broker, request)
                if reply is None:
                    link.close()
                    return
                await link.reply(request, reply)

    def _reply(self, broker: FakeBroker, request: Request) -> Any:
        node = {"node_id": 1, "host": broker.host, "port": broker.port}
        if request.api_key == API_VERSIONS.key:
            return api_versions(request.version, RANGES)
        if request.api_key == METADATA.key:
            partitions = [
                {"error_code": 0, "partition_index": number, "leader_id": 1, "leader_epoch": 1}
                | {"replica_nodes": (1,), "isr_nodes": (1,), "offline_replicas": ()}
                for number in (0, 1)
            ]
            topic = {"error_code": 0, "name": "t", "topic_id": TOPIC, "is_internal": False, "partitions": partitions}
            topics = [topic] if request.body.topics else []
            brokers = [{"node_id": number, "host": broker.host, "port": port} for number, port in self.others.items()]
            brokers.append(node)
            return answer(METADATA, request.version, brokers=brokers, topics=topics, throttle_time=0, error_code=0)
        if request.api_key == FIND_COORDINATOR.key:
            found = {"key": "g", "error_code": 0, "error_message": None, **node}
            return answer(FIND_COORDINATOR, request.version, coordinators=[found], throttle_time=0)
        self.requests.append(request.body)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)


def committed(**codes: int) -> Answer:
    """The response to OffsetCommit: `p0=code`."""

    def reply(request: Request) -> Any:
        partitions = [{"partition_index": int(name[1:]), "error_code": code} for name, code in codes.items()]
        topics = [{"topic_id": TOPIC, "partitions": partitions}]
        return answer(OFFSET_COMMIT, request.version, topics=topics, throttle_time=0)

    return reply


def deleted(code: int) -> Answer:
    result = {"group_id": "g", "error_code": code}
    return lambda request: answer(DELETE_GROUPS, request.version, results=[result], throttle_time=0)


def nothing_committed(request: Request) -> Any:
    group = {"group_id": "g.backlog", "topics": (), "error_code": 0}
    return answer(OFFSET_FETCH, request.version, groups=[group], throttle_time=0)


def with_broker(script: Script, test: Callable[[AsyncAdmin], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with FakeBroker() as broker:
            serving = asyncio.create_task(script.serve(broker))
            async with AsyncAdmin(bootstrap_servers=broker.name, retry_backoff_ms=1, retry_backoff_max_ms=10) as admin:
                await test(admin)
            serving.cancel()
            await asyncio.wait({serving})

    run(main())


def test_only_partitions_that_may_still_succeed_are_sent_again() -> None:
    script = Script(committed(p0=0, p1=int(ErrorCode.not_coordinator)), committed(p1=0))
    with_broker(script, lambda admin: admin.alter_offsets("g", {FIRST: 5, SECOND: 6}))
    sent = [[(it.partition_index, it.committed_offset) for it in each.topics[0].partitions] for each in script.requests]
    assert sent == [[(0, 5), (1, 6)], [(1, 6)]]
    assert {(each.member_id, each.generation_id_or_member_epoch) for each in script.requests} == {("", -1)}


def test_a_partition_that_is_retried_in_vain_is_reported_with_those_that_are_done() -> None:
    async def test(admin: AsyncAdmin, scale: float) -> None:
        with pytest.raises(
            PartialFailureError, match=r"1 of 2 failed: t-1 .*NOT_COORDINATOR.*The others are"
        ) as caught:
            await admin.alter_offsets("g", {FIRST: 5, SECOND: 6}, timeout=0.3 * scale)
        assert caught.value.done == {FIRST}
        assert isinstance(caught.value.errors[SECOND], RequestTimeoutError)

    def scenario(scale: float) -> None:
        code = int(ErrorCode.not_coordinator)
        with_broker(Script(committed(p0=0, p1=code), committed(p1=code)), lambda admin: test(admin, scale))

    patiently(scenario)


def test_a_partition_that_the_response_leaves_out_has_failed() -> None:
    async def test(admin: AsyncAdmin) -> None:
        with pytest.raises(PartialFailureError) as caught:
            await admin.alter_offsets("g", {FIRST: 5, SECOND: 6})
        assert isinstance(caught.value.errors[SECOND], ProtocolError)

    with_broker(Script(committed(p0=0)), test)


def test_partitions_that_all_failed_for_different_reasons_leave_no_others() -> None:
    async def test(admin: AsyncAdmin) -> None:
        with pytest.raises(PartialFailureError, match=r"all 2 failed: t-0 .*, t-1 .*\)$") as caught:
            await admin.alter_offsets("g", {FIRST: 5, SECOND: 6})
        assert caught.value.done == frozenset()

    codes = {"p0": int(ErrorCode.invalid_commit_offset_size), "p1": int(ErrorCode.offset_metadata_too_large)}
    with_broker(Script(committed(**codes)), test)


def test_partitions_that_failed_for_one_reason_raise_it() -> None:
    async def test(admin: AsyncAdmin) -> None:
        with pytest.raises(KafkaError, match="INVALID_COMMIT_OFFSET_SIZE"):
            await admin.alter_offsets("g", {FIRST: 5, SECOND: 6})

    code = int(ErrorCode.invalid_commit_offset_size)
    with_broker(Script(committed(p0=code, p1=code)), test)


def test_a_group_whose_deletion_had_no_response_is_deleted() -> None:
    async def test(admin: AsyncAdmin) -> None:
        assert await admin.delete_group("g") == ("g",)

    lost = Script(lambda request: None, deleted(int(ErrorCode.group_id_not_found)), nothing_committed)
    with_broker(lost, test)


def changed(api: Api, code: int) -> Answer:
    """The response to CreateTopics or DeleteTopics."""
    created = {"topic_config_error_code": 0, "num_partitions": 1, "replication_factor": 1, "configs": ()}
    topic = {"name": "t", "topic_id": TOPIC, "error_code": code, "error_message": None}
    results = {"topics": [topic | created]} if api is CREATE_TOPICS else {"responses": [topic]}
    return lambda request: answer(api, request.version, **results, throttle_time=0)


def lost(_: Request) -> None:
    return None


def change_topic(api: Api) -> Callable[[AsyncAdmin], Coroutine[Any, Any, None]]:
    return lambda admin: admin.create_topic("t") if api is CREATE_TOPICS else admin.delete_topic("t")


TOPIC_CHANGES = [
    (CREATE_TOPICS, ErrorCode.topic_already_exists),
    (DELETE_TOPICS, ErrorCode.unknown_topic_or_partition),
]


@pytest.mark.parametrize(("api", "already_done"), TOPIC_CHANGES)
@pytest.mark.parametrize("is_timed_out_by_the_broker", [False, True])
def test_a_change_of_a_topic_that_had_no_response_and_is_found_done_succeeds(
    api: Api, already_done: ErrorCode, is_timed_out_by_the_broker: bool
) -> None:
    first = changed(api, int(ErrorCode.request_timed_out)) if is_timed_out_by_the_broker else lost
    script = Script(first, changed(api, int(already_done)))
    with_broker(script, change_topic(api))
    assert len(script.requests) == 2


@pytest.mark.parametrize(("api", "already_done"), TOPIC_CHANGES)
@pytest.mark.parametrize("failure", [None, ErrorCode.not_controller])
def test_a_change_of_a_topic_that_somebody_else_has_made_is_an_error(
    api: Api, already_done: ErrorCode, failure: ErrorCode | None
) -> None:
    async def test(admin: AsyncAdmin) -> None:
        with pytest.raises(KafkaError) as caught:
            await change_topic(api)(admin)
        assert caught.value.code == already_done

    rejected = [] if failure is None else [changed(api, int(failure))]
    with_broker(Script(*rejected, changed(api, int(already_done))), test)


def test_a_broker_that_cannot_be_reached_does_not_hide_that_a_topic_exists() -> None:
    """Nothing was sent to it, so it cannot have created the topic."""

    async def test(admin: AsyncAdmin) -> None:
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            await admin.create_topic("t")

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # reserves a port, and does not listen
        script = Script(
            changed(CREATE_TOPICS, int(ErrorCode.topic_already_exists)), others={7: unused.getsockname()[1]}
        )
        with_broker(script, test)


def test_a_reset_of_a_share_group_names_the_partition_that_was_refused_and_moves_the_others() -> None:
    def started(request: Request) -> Any:
        found = [{"partition_index": at, "start_offset": 9, "leader_epoch": 0, "lag": 0, **NO_ERROR} for at in (0, 1)]
        topics = [{"topic_name": "t", "topic_id": TOPIC, "partitions": found}]
        group = {"group_id": "g", "topics": topics, **NO_ERROR}
        return answer(DESCRIBE_SHARE_GROUP_OFFSETS, request.version, groups=[group], throttle_time=0)

    def altered(request: Request) -> Any:
        refused = {"error_code": int(ErrorCode.topic_authorization_failed), "error_message": "not yours"}
        found = [{"partition_index": 0, **NO_ERROR}, {"partition_index": 1, **refused}]
        topics = [{"topic_name": "t", "topic_id": TOPIC, "partitions": found}]
        return answer(ALTER_SHARE_GROUP_OFFSETS, request.version, responses=topics, throttle_time=0, **NO_ERROR)

    async def test(admin: AsyncAdmin) -> None:
        changes = tuple(OffsetChange(tp, 9, 5, commit=OffsetAndMetadata(5)) for tp in (FIRST, SECOND))
        found = dict.fromkeys((FIRST, SECOND), OffsetAndMetadata(9))
        with pytest.raises(PartialFailureError, match=r"1 of 2 failed: t-1 \(.*not yours\)") as caught:
            await admin.apply_reset(ResetPlan("g", "share", changes, None, {"t": TOPIC}, found))
        assert caught.value.done == {FIRST}
        assert isinstance(caught.value.errors[SECOND], AuthorizationError)

    script = Script(started, altered)
    with_broker(script, test)
    assert [(it.partition_index, it.start_offset) for it in script.requests[1].topics[0].partitions] == [(0, 5), (1, 5)]


def test_a_member_that_joins_before_the_commit_is_a_clear_error() -> None:
    """The description that follows does not find it any more: nothing is known about it."""

    async def test(admin: AsyncAdmin, scale: float) -> None:
        with pytest.raises(KafkaError, match="a member has joined the group meanwhile") as caught:
            await admin.alter_offsets("g", {FIRST: 5}, timeout=0.3 * scale)
        assert caught.value.name == "NON_EMPTY_GROUP"

    def scenario(scale: float) -> None:
        script = Script(committed(p0=int(ErrorCode.unknown_member_id)), lambda request: None)
        with_broker(script, lambda admin: test(admin, scale))

    patiently(scenario)


def test_a_group_of_kafka_connect_is_described_without_partitions() -> None:
    """Its assignments have a form of their own."""

    def listed(request: Request) -> Any:
        group = {"group_id": "g", "protocol_type": "connect", "group_state": "Stable", "group_type": "classic"}
        return answer(LIST_GROUPS, request.version, error_code=0, groups=[group], throttle_time=0)

    def described(request: Request) -> Any:
        member = {"member_id": "m", "group_instance_id": None, "client_id": "worker", "client_host": "/h"}
        member |= {"member_metadata": b"", "member_assignment": b"\x00\x01\xff\xff\xff\xffnonsense"}
        group = {"error_code": 0, "error_message": None, "group_id": "g", "group_state": "Stable"}
        group |= {"protocol_type": "connect", "protocol_data": "sessioned", "members": [member]}
        return answer(DESCRIBE_GROUPS, request.version, groups=[group], throttle_time=0)

    async def test(admin: AsyncAdmin) -> None:
        found = await admin.describe_group("g")
        assert found is not None
        assert [(each.client_id, each.partitions) for each in found.members] == [("worker", frozenset())]

    with_broker(Script(listed, described), test)
