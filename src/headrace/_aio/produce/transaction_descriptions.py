"""The response to DescribeTransactions."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from ..._machines.produce.open_transaction import TransactionDescription
from ..._protocol.messages import exactly_one


def description_of(body: Any, doing: str) -> tuple[int, TransactionDescription | None]:
    """The error code and the description of the only transactional id in the response."""
    state = exactly_one(body.transaction_states, doing)
    if state.error_code != ErrorCode.none:
        return state.error_code, None
    return state.error_code, TransactionDescription(
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_start_time,
        round(state.transaction_timeout.total_seconds() * 1000),
    )
