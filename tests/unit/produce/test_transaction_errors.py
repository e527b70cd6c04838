"""Every transactional request with every error code: the effect on the producer."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as E

from headrace._machines.produce.transaction_errors import (
    ErrorEffect,
    TransactionApi,
    effect_of,
    effect_of_lost_batch,
    effect_without_answer,
    worst_of,
)
from headrace._protocol.codes import kafka_error
from headrace.errors import (
    AuthenticationError,
    EncodingError,
    HeadraceError,
    NetworkError,
    RequestTimeoutError,
    UnsupportedVersionError,
)

PRODUCE, INIT, ADD, ADD_OFFSETS, OFFSETS, END, DESCRIBE = TransactionApi
ALL = tuple(TransactionApi)
NONE, RETRY, FIND, ABORT, FATAL, FENCED = ErrorEffect

# The expected effect of error codes by request, written independently of the table in the source.
EXPECTED = {
    PRODUCE: {
        NONE: {0, 46},
        FATAL: {31, 35, 50, 53},
        FENCED: {49, 90},
        FIND: set(),
        RETRY: {2, 3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 51, 56, 74, 75, 100},
        ABORT: {-1, 10, 17, 18, 21, 29, 32, 44, 45, 47, 48, 59, 76, 87, 120, 9999},
    },
    INIT: {
        NONE: {0},
        RETRY: {7, 14, 51},
        FIND: {15, 16},
        ABORT: {31, 53, 120},
        FENCED: {47, 49, 90},
        FATAL: {-1, 35, 42, 48, 50, 9999},
    },
    ADD: {
        NONE: {0},
        RETRY: {3, 5, 6, 7, 13, 14, 51},
        FIND: {15, 16},
        ABORT: {-1, 29, 30, 55, 59, 120, 9999},
        FENCED: {47, 49, 90},
        FATAL: {35, 48, 50, 53},
    },
    ADD_OFFSETS: {
        NONE: {0},
        RETRY: {7, 14, 51},
        FIND: {15, 16},
        ABORT: {30, 59, 120},
        FENCED: {47, 49, 90},
        FATAL: {-1, 35, 48, 53, 9999},
    },
    OFFSETS: {
        NONE: {0},
        RETRY: {3, 14, 51},
        FIND: {7, 15, 16},
        ABORT: {22, 25, 30, 82, 120},
        FENCED: {47, 49, 90},
        FATAL: {-1, 12, 35, 48, 53, 9999},
    },
    END: {
        NONE: {0},
        RETRY: {7, 14, 51},
        FIND: {15, 16},
        ABORT: {59, 120},
        FENCED: {47, 49, 90},
        FATAL: {-1, 35, 42, 48, 50, 53, 9999},
    },
    DESCRIBE: {
        NONE: {0, 105},
        RETRY: {7, 14},
        FIND: {15, 16},
        ABORT: {53},
        FENCED: set(),
        FATAL: {-1, 35, 42, 47, 49, 90, 9999},
    },
}
_SUCCESSES = {(PRODUCE, E.duplicate_sequence_number), (DESCRIBE, E.transactional_id_not_found)}


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.value)
@pytest.mark.parametrize("effect", ErrorEffect)
def test_an_error_has_its_effect(api: TransactionApi, effect: ErrorEffect) -> None:
    for code in EXPECTED[api][effect]:
        assert effect_of(api, code) is effect, code


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.value)
def test_every_code_of_kafka_has_an_effect_and_only_none_is_success(api: TransactionApi) -> None:
    for code in E:
        is_success = code is E.none or (api, code) in _SUCCESSES
        assert (effect_of(api, code) is NONE) == is_success
        if code.retriable:
            assert effect_of(api, code) in (RETRY, FIND), code


@pytest.mark.parametrize("api", ALL[:-1], ids=lambda api: api.value)
def test_a_newer_producer_is_told_apart_from_other_fatal_errors(api: TransactionApi) -> None:
    assert effect_of(api, E.producer_fenced) is FENCED
    assert effect_of(api, E.unsupported_version) is FATAL


def test_the_worst_partition_counts() -> None:
    def worst(*codes: int) -> int:
        return worst_of(ADD, codes)

    assert worst() == E.none
    assert worst(0, 0) == E.none
    assert worst(0, 14, 16) == E.not_coordinator
    assert worst(55, 29, 55) == E.topic_authorization_failed
    assert worst(16, 29, 90, 53) == E.producer_fenced


@pytest.mark.parametrize(
    ("error", "effects"),
    [
        (NetworkError("x"), {FIND}),
        (RequestTimeoutError("x"), {FIND}),
        (UnsupportedVersionError("x"), {FATAL}),
        (AuthenticationError("x", "authenticate"), {FATAL}),
    ],
)
def test_a_request_without_an_answer_is_repeated_or_fatal(error: HeadraceError, effects: set[ErrorEffect]) -> None:
    assert {effect_without_answer(api, error) for api in ALL[1:]} == effects


def test_offsets_that_do_not_fit_into_a_request_abort_the_transaction() -> None:
    assert effect_without_answer(OFFSETS, EncodingError("x")) is ABORT
    assert effect_without_answer(END, EncodingError("x")) is FATAL


def test_an_error_of_find_coordinator_counts_as_one_of_the_request() -> None:
    assert effect_without_answer(OFFSETS, kafka_error(E.group_authorization_failed, "x")) is ABORT
    assert effect_without_answer(END, kafka_error(E.transactional_id_authorization_failed, "x")) is FATAL
    assert effect_without_answer(INIT, kafka_error(E.coordinator_not_available, "x")) is FIND


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (RequestTimeoutError("delivery timed out"), ABORT),
        (NetworkError("x"), ABORT),
        (EncodingError("too large"), ABORT),
        (UnsupportedVersionError("x"), FATAL),
        (kafka_error(E.not_leader_or_follower, "retried in vain"), ABORT),
        (kafka_error(E.message_too_large, "x"), ABORT),
        (kafka_error(E.topic_authorization_failed, "x"), ABORT),
        (kafka_error(E.invalid_producer_epoch, "x"), ABORT),
        (kafka_error(E.producer_fenced, "x"), FENCED),
        (kafka_error(E.invalid_producer_id_mapping, "x"), FENCED),
        (kafka_error(E.cluster_authorization_failed, "x"), FATAL),
    ],
)
def test_a_batch_that_is_given_up_aborts_the_transaction_or_is_fatal(error: HeadraceError, effect: ErrorEffect) -> None:
    assert effect_of_lost_batch(error) is effect
