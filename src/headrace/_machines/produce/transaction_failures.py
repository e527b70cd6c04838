"""The exceptions of a producer whose transaction, or which itself, has failed: what happened, and what to do."""

from __future__ import annotations

from ...errors import (
    HeadraceError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionError,
    TransactionFatalError,
)


def abortable_failure(transactional_id: str, cause: HeadraceError | None, *, can_abort: bool) -> TransactionError:
    """The transaction must be aborted; without `can_abort`, transactions were not initialized."""
    advice = "abort(), then repeat the transaction" if can_abort else "begin() again"
    return _caused(
        TransactionAbortableError(
            f"the transaction of transactional.id {transactional_id!r} failed: {cause}. Call {advice}"
        ),
        cause,
    )


def fatal_failure(
    transactional_id: str, cause: HeadraceError | None, *, is_fenced: bool, may_be_committed: bool
) -> TransactionError:
    """The producer cannot continue. `may_be_committed`: it is unknown whether its transaction was committed."""
    producer = f"the producer of transactional.id {transactional_id!r}"
    outcome = " It is unknown whether the transaction was committed." if may_be_committed else ""
    made: TransactionError
    if is_fenced:
        made = ProducerFencedError(
            f"{producer} is fenced: {cause}. Another producer with this id has started, or the transaction exceeded "
            f"transaction.timeout.ms.{outcome} Close this producer and create a new one"
        )
    else:
        made = TransactionFatalError(f"{producer} cannot continue: {cause}.{outcome} Close this producer")
    return _caused(made, cause)


def _caused(made: TransactionError, cause: HeadraceError | None) -> TransactionError:
    made.__cause__ = cause
    return made
