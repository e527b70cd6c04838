"""Errors of transactional requests and their effects (KIP-1050).

    retry    the same request again, after a backoff
    find     the same request again, after its coordinator was found again
    abort    the transaction must be aborted; then the producer can be used again
    fenced   this producer cannot continue, a new one can
    fatal    this producer cannot continue

- The first matching row of the table decides; "-" means that the row does not match.
- Produce: the sender decides about retries itself (`idempotence.py`) and uses this table for batches that it gives up.
  It gives up a batch with OUT_OF_ORDER_SEQUENCE_NUMBER only if no batch before it is missing, and one with
  MESSAGE_TOO_LARGE only if it has one record. A batch whose retries failed aborts the transaction.
- A Produce with INVALID_PRODUCER_EPOCH does not prove a newer producer: the transaction may have timed out. The
  response to EndTxn decides.
- An EndTxn that aborts cannot be followed by another abort, so "abort" is fatal there.
- DescribeTransactions is sent where only it tells whether this producer is fenced (`transaction_ownership.py`).
- Responses to AddPartitionsToTxn and TxnOffsetCommit have one error per partition. The worst one counts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from ..._protocol.codes import is_retriable
from ...errors import EncodingError, HeadraceError, KafkaError, UnsupportedVersionError


class TransactionApi(enum.Enum):
    """The requests of a transaction. The order is the one of the table's columns."""

    PRODUCE = "Produce"
    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"
    DESCRIBE = "DescribeTransactions"


class ErrorEffect(enum.IntEnum):
    """The effect of an error on the transaction, from harmless to worst."""

    NONE = 0
    RETRY = 1
    FIND = 2
    ABORT = 3
    FATAL = 4
    FENCED = 5


_E = ErrorCode
# fmt: off
_TABLE = (
    # error                                     Produce  Init     AddPart. AddOff.  OffsetC. EndTxn   Describe
    (_E.none,                                   "none    none     none     none     none     none     none"),
    (_E.duplicate_sequence_number,              "none    -        -        -        -        -        -"),
    (_E.coordinator_load_in_progress,           "retry   retry    retry    retry    retry    retry    retry"),
    (_E.concurrent_transactions,                "retry   retry    retry    retry    retry    retry    -"),
    (_E.coordinator_not_available,              "retry   find     find     find     find     find     find"),
    (_E.not_coordinator,                        "retry   find     find     find     find     find     find"),
    (_E.request_timed_out,                      "retry   retry    retry    retry    find     retry    retry"),
    (_E.out_of_order_sequence_number,           "abort   -        -        -        -        -        -"),
    (_E.invalid_producer_epoch,                 "abort   fenced   fenced   fenced   fenced   fenced   -"),
    (_E.producer_fenced,                        "fenced  fenced   fenced   fenced   fenced   fenced   -"),
    (_E.invalid_producer_id_mapping,            "fenced  fenced   fenced   fenced   fenced   fenced   -"),
    (_E.invalid_txn_state,                      "abort   -        fatal    fatal    fatal    fatal    -"),
    (_E.unknown_producer_id,                    "abort   -        abort    abort    -        abort    -"),
    (_E.transaction_abortable,                  "abort   abort    abort    abort    abort    abort    -"),
    (_E.transactional_id_authorization_failed,  "fatal   abort    fatal    fatal    fatal    fatal    abort"),
    (_E.cluster_authorization_failed,           "fatal   abort    -        -        -        -        -"),
    (_E.topic_authorization_failed,             "abort   -        abort    -        -        -        -"),
    (_E.operation_not_attempted,                "-       -        abort    -        -        -        -"),
    (_E.group_authorization_failed,             "-       -        abort    abort    abort    -        -"),
    (_E.unknown_member_id,                      "-       -        -        -        abort    -        -"),
    (_E.illegal_generation,                     "-       -        -        -        abort    -        -"),
    (_E.fenced_instance_id,                     "-       -        -        -        abort    -        -"),
    (_E.transactional_id_not_found,             "-       -        -        -        -        -        none"),
    (_E.invalid_transaction_timeout,            "fatal   fatal    fatal    fatal    fatal    fatal    -"),
    (_E.unsupported_version,                    "fatal   fatal    fatal    fatal    fatal    fatal    -"),
    # Other errors. Produce: a record is too large, invalid, or denied.
    ("retriable",                               "retry   retry    retry    retry    retry    retry    retry"),
    ("any other",                               "abort   fatal    abort    fatal    fatal    fatal    fatal"),
)
# fmt: on


def _columns() -> dict[TransactionApi, dict[ErrorCode | str, ErrorEffect]]:
    return {
        api: {
            error: ErrorEffect[effect.upper()]
            for error, effects in _TABLE
            if (effect := effects.split()[column]) != "-"
        }
        for column, api in enumerate(TransactionApi)
    }


_EFFECTS = _columns()
_ADDITIONS = (TransactionApi.ADD_PARTITIONS, TransactionApi.ADD_OFFSETS, TransactionApi.COMMIT_OFFSETS)


def effect_of(api: TransactionApi, code: int) -> ErrorEffect:
    """The effect of an error code in the response to a request."""
    effects = _EFFECTS[api]
    try:
        return effects[ErrorCode(code)]
    except (KeyError, ValueError):
        return effects["retriable" if is_retriable(code) else "any other"]


def worst_of(api: TransactionApi, codes: Iterable[int]) -> int:
    """The decisive code of a response with one code per partition."""

    def badness(code: int) -> tuple[ErrorEffect, bool]:
        # The partition with the error is a better cause than those that were not attempted because of it.
        return effect_of(api, code), code != ErrorCode.operation_not_attempted

    return max(codes, key=badness, default=ErrorCode.none)


def effect_without_answer(api: TransactionApi, error: HeadraceError) -> ErrorEffect:
    """The effect of a request that could not be sent or got no response."""
    if isinstance(error, KafkaError):  # from FindCoordinator
        effect = effect_of(api, error.code)
        return effect if effect is not ErrorEffect.NONE else ErrorEffect.FATAL
    if error.retriable:
        return ErrorEffect.FIND
    if isinstance(error, EncodingError) and api in _ADDITIONS:
        return ErrorEffect.ABORT
    return ErrorEffect.FATAL


def effect_of_lost_batch(error: HeadraceError) -> ErrorEffect:
    """The effect of a batch that the sender gives up: ABORT, FATAL or FENCED."""
    if isinstance(error, KafkaError):
        return max(ErrorEffect.ABORT, effect_of(TransactionApi.PRODUCE, error.code))
    return ErrorEffect.FATAL if isinstance(error, UnsupportedVersionError) else ErrorEffect.ABORT
