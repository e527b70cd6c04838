"""Transactional requests: which are sent, when, and with which fields."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.idempotence import ProducerIdentity
from headrace._machines.produce.transaction import TransactionManager
from headrace._machines.produce.transaction_errors import TransactionApi
from headrace._machines.produce.transaction_states import NextStep
from headrace._protocol.messages import Api, encode_request
from headrace.errors import NetworkError
from headrace.types import OffsetAndMetadata
from support.harness.transactions import (
    CALLS,
    FIRST,
    GROUP,
    OFFSETS,
    REQUESTS,
    T0,
    T1,
    TIMEOUT,
    A,
    S,
    abortable,
    aborting,
    begun,
    committing,
    fatal,
    is_quiet,
    ready,
    take,
    take_init,
    waiting,
)

# -- requests --------------------------------------------------------------------------------------------------------


def test_version_2_sends_batches_at_once_and_gets_its_next_identity_from_end_txn() -> None:
    manager = begun(2)
    assert not manager.may_send(T0)
    manager.add_partition(T0)
    assert manager.may_send(T0)
    assert manager.produce_versions == (12, 13)
    assert is_quiet(manager)
    manager.commit()
    request = take(manager, A.END)
    assert request.versions == (5, 5)
    assert request.fields == {"transactional_id": "id", "producer_id": 7, "producer_epoch": 0, "committed": True}
    assert not manager.may_send(T0)
    manager.answered(request, E.none, ProducerIdentity(8, 0))
    assert manager.identity == (8, 0)
    assert manager.state is S.READY


def test_version_1_sends_batches_after_add_partitions_and_keeps_its_identity() -> None:
    manager = begun(1)
    manager.add_partition(T0)
    manager.add_partition(T1)
    assert not manager.may_send(T0)
    assert manager.produce_versions.highest == 11
    request = take(manager, A.ADD_PARTITIONS, 2)
    assert request.versions.highest == 3
    assert request.fields["v3_and_below_topics"] == [{"name": "t", "partitions": [0, 1]}]
    manager.answered_partitions(request, {T0: E.none, T1: E.none})
    assert manager.may_send(T0)
    assert manager.may_send(T1)
    manager.commit()
    request = take(manager, A.END)
    assert request.versions.highest == 4
    manager.answered(request, E.none)
    assert (manager.identity, manager.state) == (FIRST, S.READY)


def test_a_partition_that_comes_while_others_are_added_is_added_next() -> None:
    manager = begun(1)
    manager.add_partition(T0)
    request = take(manager, A.ADD_PARTITIONS)
    manager.add_partition(T1)
    manager.answered_partitions(request, {T0: E.none})
    assert manager.may_send(T0)
    assert not manager.may_send(T1)
    assert take(manager, A.ADD_PARTITIONS).partitions == {T1}


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_go_to_the_coordinator_of_the_group(version: int) -> None:
    manager = begun(version)
    manager.add_offsets(GROUP, OFFSETS)
    manager.commit()
    if version == 1:
        request = take(manager, A.ADD_OFFSETS)
        assert (request.group, request.fields["group_id"], request.versions.highest) == (None, "g", 4)
        manager.answered(request, E.none)
    request = take(manager, A.COMMIT_OFFSETS)
    assert (request.group, request.versions.highest) == ("g", 4 if version == 1 else 5)
    fields = request.fields
    assert (fields["member_id"], fields["generation_id"], fields["group_instance_id"]) == ("member", 5, "instance")
    assert fields["topics"][0]["partitions"][0] == {
        "partition_index": 0,
        "committed_offset": 10,
        "committed_leader_epoch": 3,
        "committed_metadata": "m",
    }
    assert manager.has_pending_offsets
    assert manager.answered_partitions(request, {T0: E.none, T1: E.coordinator_load_in_progress}) is NextStep.RETRY
    request = take(manager, A.COMMIT_OFFSETS)
    assert request.partitions == {T1}, "only failed partitions are sent again"
    assert manager.answered_partitions(request, {T1: E.not_coordinator}) is NextStep.FIND_COORDINATOR
    manager.answered_partitions(take(manager, A.COMMIT_OFFSETS), {T1: E.none})
    assert not manager.has_pending_offsets
    take(manager, A.END)


def test_offsets_that_are_replaced_while_they_are_sent_are_sent_again() -> None:
    manager = begun(2)
    manager.add_offsets(GROUP, OFFSETS)
    request = take(manager, A.COMMIT_OFFSETS)
    manager.add_offsets(GROUP._replace(generation_id=6), {T0: OffsetAndMetadata(11)})
    manager.answered_partitions(request, {T0: E.none, T1: E.none})
    request = take(manager, A.COMMIT_OFFSETS)
    assert request.partitions == {T0}
    assert request.fields["generation_id"] == 6
    assert request.fields["topics"][0]["partitions"][0]["committed_offset"] == 11


def test_no_offsets_are_no_part_of_a_transaction() -> None:
    manager = begun(1)
    manager.add_offsets(GROUP, {})
    manager.commit()
    assert is_quiet(manager)
    manager.end_call()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("call", ["commit", "abort"])
def test_nothing_is_sent_for_an_empty_transaction(version: int, call: str) -> None:
    manager = begun(version)
    CALLS[call](manager)
    assert is_quiet(manager, unanswered=1)
    assert not manager.is_call_done
    assert is_quiet(manager)
    manager.end_call()
    assert (manager.state, manager.identity) == (S.READY, FIRST)


@pytest.mark.parametrize("make", [committing, aborting])
def test_end_txn_waits_for_the_answers_to_all_batches(make: Callable[[], TransactionManager]) -> None:
    manager = make()
    assert is_quiet(manager, unanswered=1)
    assert take(manager, A.END).fields["committed"] is (make is committing)


def test_a_batch_can_still_be_sent_while_a_commit_waits() -> None:
    manager = committing(version=1)
    manager.add_partition(T1)
    manager.answered_partitions(take(manager, A.ADD_PARTITIONS, 1), {T1: E.none})
    assert manager.may_send(T1)


@pytest.mark.parametrize("make", [ready, aborting, abortable, fatal])
def test_no_batch_is_sent_outside_of_a_transaction_that_may_be_committed(
    make: Callable[[], TransactionManager],
) -> None:
    manager = make()
    manager.add_partition(T0)
    assert not manager.may_send(T0)


def test_an_upgrade_of_the_cluster_takes_effect_with_a_new_epoch_before_the_next_transaction() -> None:
    manager = committing(version=1)
    manager.answered(take(manager, A.END), E.none)
    manager.end_call()
    manager.begin(2)
    manager.add_partition(T0)
    assert not manager.may_send(T0)
    request = take_init(manager)
    assert (request.fields["producer_id"], request.fields["producer_epoch"]) == FIRST
    manager.answered(request, E.none, ProducerIdentity(7, 1))
    assert manager.may_send(T0)
    assert manager.state is S.IN_TRANSACTION
    assert manager.produce_versions.lowest == 12


def test_an_upgrade_whose_new_epoch_is_unknown_aborts_without_end_txn() -> None:
    manager = committing(version=1)
    manager.answered(take(manager, A.END), E.none)
    manager.end_call()
    manager.begin(2)
    manager.add_partition(T0)
    manager.failed(take_init(manager), NetworkError("lost"))
    manager.abort()
    request = take_init(manager)
    assert request.fields["producer_epoch"] == 0
    manager.answered(request, E.none, ProducerIdentity(7, 1))
    manager.end_call()
    assert manager.state is S.READY


def test_the_first_transaction_needs_no_new_epoch_and_an_unused_identity_neither() -> None:
    manager = begun(1)
    manager.commit()
    assert is_quiet(manager)
    manager.end_call()
    manager.begin(2)
    assert is_quiet(manager)


def test_version_1_raises_its_epoch_after_an_abort_that_followed_an_error() -> None:
    for make in (aborting, abortable):
        manager = make(version=1)
        if make is abortable:
            manager.abort()
        manager.answered(take(manager, A.END), E.none)
        assert manager.state is (S.INITIALIZING if make is abortable else S.READY)


def test_version_1_raises_its_epoch_if_a_batch_is_lost_during_an_abort() -> None:
    manager = aborting(version=1)
    manager.batch_failed(FIRST, TIMEOUT)
    assert manager.state is S.ABORTING
    manager.answered(take(manager, A.END), E.none)
    assert take_init(manager).fields["producer_id"] == 7


def test_version_1_keeps_its_epoch_if_an_abort_drops_a_batch_that_was_never_sent() -> None:
    manager = aborting(version=1)
    manager.batch_failed(None, TIMEOUT)
    manager.answered(take(manager, A.END), E.none)
    assert manager.state is S.READY


def test_version_1_raises_its_epoch_if_offsets_may_still_arrive_after_the_abort() -> None:
    manager = begun(1)
    manager.add_offsets(GROUP, OFFSETS)
    manager.answered(take(manager, A.ADD_OFFSETS), E.none)
    manager.failed(take(manager, A.COMMIT_OFFSETS), NetworkError("lost"))
    manager.abort()
    manager.answered(take(manager, A.END), E.none)
    take_init(manager)


def test_version_2_needs_no_init_producer_id_after_an_error() -> None:
    manager = abortable()
    manager.abort()
    manager.answered(take(manager, A.END), E.none, ProducerIdentity(7, 1))
    assert manager.state is S.READY
    assert is_quiet(manager)


def test_version_1_is_fenced_if_its_abort_is_refused() -> None:
    manager = aborting(version=1)
    manager.answered(take(manager, A.END), E.producer_fenced)
    assert manager.state is S.FATAL_ERROR


@pytest.mark.parametrize("added", [True, False])
def test_version_1_asks_again_whether_there_is_a_transaction_before_it_is_aborted(added: bool) -> None:
    manager = begun(1)
    manager.add_partition(T0)
    lost = take(manager, A.ADD_PARTITIONS)
    assert manager.failed(lost, NetworkError("lost")) is NextStep.FIND_COORDINATOR
    manager.abort()
    again = take(manager, A.ADD_PARTITIONS)
    assert again.partitions == {T0}
    manager.answered_partitions(again, {T0: E.none if added else E.topic_authorization_failed})
    if added:
        take(manager, A.END)
    else:
        assert take_init(manager).fields["producer_id"] == 7, "a new epoch aborts any open transaction"


def test_version_1_does_not_repeat_a_refused_addition_before_an_abort() -> None:
    manager = begun(1)
    manager.add_partition(T0)
    request = take(manager, A.ADD_PARTITIONS)
    manager.abort()
    manager.answered_partitions(request, {T0: E.unknown_topic_or_partition})
    assert is_quiet(manager)
    manager.end_call()


KEYS = {A.INIT_PRODUCER_ID: 22, A.ADD_PARTITIONS: 24, A.ADD_OFFSETS: 25, A.COMMIT_OFFSETS: 28, A.END: 26}


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.value)
def test_the_fields_of_a_request_can_be_encoded_in_all_its_versions(api: TransactionApi) -> None:
    _, request = waiting(api)
    for version in range(request.versions.lowest, request.versions.highest + 1):
        assert encode_request(Api(KEYS[api], api.value, *request.versions), version, 1, None, request.fields)
