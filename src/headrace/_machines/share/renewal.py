"""When acquisition locks are renewed (KIP-1222): after half of their time.

buffered records                  always. A release would count as a delivery, and a record that was delivered too
                                  often is archived
records in hand, with renew=auto  until max.poll.interval.ms after their poll: a user who takes longer is considered
                                  stuck, and the lock expires
records in hand, without it       when the user acknowledges them with RENEW
"""

from __future__ import annotations

import math

from .acquired import AcquisitionLock
from .broker_session import BrokerSession, ShareSettings
from .buffer import ShareBuffer


def renew_later(session: BrokerSession, lock_timeout: float | None, now: float) -> None:
    """Looks at the locks of this broker again when the locks of records that are returned now need it."""
    if session.is_up:
        session.renew_at = min(session.renew_at, now + (lock_timeout or math.inf) / 2)


def renew_due_locks(
    session: BrokerSession, buffer: ShareBuffer, settings: ShareSettings, lock_timeout: float | None, now: float
) -> None:
    """Notes the renewals that the next request to this broker has to carry, and in `renew_at` when to look again."""
    if now < session.renew_at:
        return
    session.renew_at = math.inf  # even if nothing can be renewed: otherwise the next look would stay in the past
    if not session.can_renew or lock_timeout is None:
        return
    margin = lock_timeout / 2

    def is_due(lock: AcquisitionLock) -> bool:
        return not lock.is_unrenewable and now < lock.expires <= now + margin

    def look_again(lock: AcquisitionLock) -> None:
        if not lock.is_unrenewable and lock.expires > now + margin:
            session.renew_at = min(session.renew_at, lock.expires - margin)

    for batch in buffer:
        if batch.acquired.node == session.node and batch.acquired.lost is None:
            if is_due(batch.lock):
                batch.acquired.renew(batch.records.runs(), batch.lock)
            look_again(batch.lock)
    if not settings.renews:
        return
    for acquired in session.acquired.values():
        for run in list(acquired.in_hand):
            lock = run.value
            if lock.taken_at is not None and now - lock.taken_at < settings.max_poll_interval:
                if is_due(lock):
                    acquired.renew([(run.first, run.last)], lock)
                look_again(lock)
