"""The states of a transactional producer, and what the owner of its machine does next: see `transaction.py`."""

from __future__ import annotations

import enum

SHORT_BACKOFF = 0.02
"""Seconds, for `NextStep.RETRY_SOON`."""


class TransactionState(enum.Enum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class NextStep(enum.Enum):
    """What to do before the next `take_request`."""

    CONTINUE = "continue"
    RETRY = "retry"
    """Wait for the backoff."""
    RETRY_SOON = "retry soon"
    """Wait for `SHORT_BACKOFF`: the coordinator still completes the previous transaction."""
    FIND_COORDINATOR = "find coordinator"
    """Wait for the backoff, and find the request's coordinator again."""


class PendingCall(enum.Enum):
    """The user's pending call."""

    INIT = "begin()"
    COMMIT = "commit()"
    ABORT = "abort()"
