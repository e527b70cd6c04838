"""Acquired records of a partition: acknowledged, sent, answered, renewed, lost."""

from __future__ import annotations

import contextlib

import pytest

from headrace._machines.share.acquired import AcquiredRecords, AcquisitionLock, Outcome
from headrace._machines.share.offset_map import GAP
from headrace._protocol.codes import kafka_error
from headrace.errors import KafkaError, NetworkError
from headrace.types import AcknowledgeType
from support.harness.interrupts import Interrupter, interrupted_everywhere
from support.harness.share_broker_model import TP, tip

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
BAD_STATE, NOT_LEADER, NOT_AVAILABLE = 121, 6, 15


def acquired(*runs: tuple[int, int], lock: AcquisitionLock | None = None) -> AcquiredRecords:
    made = AcquiredRecords(TP, tip(0), 1)
    made.hand_out(runs, lock or AcquisitionLock(100.0))
    return made


def refusal(code: int) -> KafkaError:
    return kafka_error(code, "test")


def sent(made: AcquiredRecords) -> list[tuple[int, int, int]]:
    return [(each["first_offset"], each["last_offset"], *each["acknowledge_types"]) for each in made.send()]


def test_acknowledgements_are_sent_as_ranges() -> None:
    made = acquired((0, 9))
    made.decide_unseen([(10, 11)], GAP, AcquisitionLock(100.0))
    assert [made.decide(0, 3, ACCEPT), made.decide(4, 4, RELEASE), made.decide(5, 9, ACCEPT)] == [4, 1, 5]
    assert not made.in_hand
    assert sent(made) == [(0, 3, ACCEPT), (4, 4, RELEASE), (5, 9, ACCEPT), (10, 11, GAP)]
    assert made.answered(0, None, 0.0) == Outcome(TP, (range(4), range(4, 5), range(5, 10)), None)
    assert made.is_idle


def test_an_acknowledgement_can_be_changed_until_it_is_sent() -> None:
    made = acquired((0, 2))
    made.decide_all(ACCEPT)
    assert made.decide(1, 1, REJECT) == 1
    assert sent(made) == [(0, 0, ACCEPT), (1, 1, REJECT), (2, 2, ACCEPT)]
    assert made.decide(1, 1, ACCEPT) == 0


def test_gaps_cannot_be_acknowledged_and_are_not_reported() -> None:
    made = acquired()
    made.decide_unseen([(0, 4)], GAP, AcquisitionLock(100.0))
    assert made.decide(0, 4, ACCEPT) == 0
    assert sent(made) == [(0, 4, GAP)]
    assert made.answered(0, None, 0.0) is None


def test_records_that_were_never_returned_are_not_reported() -> None:
    made = acquired((0, 1))
    made.decide_unseen([(5, 9)], RELEASE, AcquisitionLock(100.0))
    made.decide_unseen([(10, 11)], REJECT, AcquisitionLock(100.0))
    assert made.decide(5, 9, ACCEPT) == 0
    made.decide(0, 1, ACCEPT)
    assert made.lose(NetworkError("gone")).ranges == (range(2),)  # type: ignore[union-attr]


def test_only_acquired_records_can_be_acknowledged() -> None:
    made = acquired((5, 9))
    assert made.decide(0, 20, ACCEPT) == 5
    assert made.decide(5, 9, RENEW) == 0


def test_acknowledgements_rejected_together_are_resent_by_lock() -> None:
    old, new = AcquisitionLock(1.0), AcquisitionLock(100.0)
    made = acquired((0, 4), lock=old)
    made.hand_out([(5, 9)], new)
    made.decide_all(ACCEPT)
    assert sent(made) == [(0, 9, ACCEPT)]
    assert made.answered(BAD_STATE, refusal(BAD_STATE), 50.0) is None
    outcomes = []
    while made.has_decided:
        ((first, last, _),) = sent(made)
        code = BAD_STATE if first == 0 else 0
        outcomes.append(made.answered(code, refusal(code) if code else None, 50.0))
        assert (first, last) in ((0, 4), (5, 9))
    assert {(each.ranges, each.error is None) for each in outcomes if each} == {
        ((range(5),), False),
        ((range(5, 10),), True),
    }


@pytest.mark.parametrize(
    ("code", "again"), [(BAD_STATE, False), (NOT_LEADER, False), (NOT_AVAILABLE, True), (-1, False)]
)
def test_only_transient_rejections_of_acknowledgements_are_retried(code: int, again: bool) -> None:
    made = acquired((0, 4))
    made.decide_all(ACCEPT)
    made.send()
    outcome = made.answered(code, refusal(code), 50.0)
    assert (outcome is None, made.has_retries) == (again, again)


def test_acknowledgements_are_not_retried_after_their_lock_expired() -> None:
    made = acquired((0, 4))
    made.decide_all(ACCEPT)
    made.send()
    assert made.answered(NOT_AVAILABLE, refusal(NOT_AVAILABLE), 100.0) is not None


def test_a_renewed_record_stays_in_hand() -> None:
    lock = AcquisitionLock(100.0)
    made = acquired((0, 4), lock=lock)
    assert made.decide(2, 3, RENEW) == 2
    assert made.has_renewals
    assert not made.has_decided
    assert made.send_renewals() == [{"first_offset": 2, "last_offset": 3, "acknowledge_types": (RENEW,)}]
    assert made.renewed(None, 500.0) == Outcome(TP, (range(2, 4),), None)
    assert [(run.first, run.last, run.value.expires, run.value.is_renewed) for run in made.in_hand] == [
        (0, 1, 100.0, False),
        (2, 3, 500.0, True),
        (4, 4, 100.0, False),
    ]


def test_a_background_renewal_moves_the_lock_and_is_not_reported() -> None:
    lock = AcquisitionLock(100.0)
    made = acquired((0, 4), lock=lock)
    made.renew([(0, 4)], lock)
    made.send_renewals()
    made.decide(1, 1, ACCEPT)  # meanwhile
    assert made.renewed(None, 500.0) is None
    assert lock.expires == 500.0
    made.renew([(0, 0)], lock)
    made.send_renewals()
    assert made.renewed(refusal(BAD_STATE), 0.0) is None
    assert lock.is_unrenewable


def test_an_acknowledgement_replaces_a_renewal() -> None:
    made = acquired((0, 4))
    made.decide(0, 4, RENEW)
    made.decide(0, 2, ACCEPT)
    assert made.send_renewals() == [{"first_offset": 3, "last_offset": 4, "acknowledge_types": (RENEW,)}]


def test_acknowledgements_of_an_unprocessed_request_are_resent() -> None:
    made = acquired((0, 4))
    made.decide(0, 1, ACCEPT)
    made.decide(3, 3, RENEW)
    assert sent(made) == [(0, 1, ACCEPT)]
    made.resend()
    assert sent(made) == [(0, 1, ACCEPT)]
    made.answered(0, None, 0.0)
    made.send_renewals()
    made.resend()
    assert made.has_renewals


def test_acquired_records_are_lost_with_the_connection() -> None:
    made = acquired((0, 9))
    made.decide(0, 1, ACCEPT)
    made.send()
    made.decide(2, 3, RELEASE)
    made.decide(4, 4, RENEW)
    error = NetworkError("gone")
    assert made.lose(error) == Outcome(TP, (range(2), range(2, 4), range(4, 5)), error)
    assert made.lost is error
    assert made.decide(5, 9, ACCEPT) == 5, "the loss is not reported yet"
    assert made.lose_late() == Outcome(TP, (range(5, 10),), error)
    assert not made.has_decided


def test_acknowledgements_of_records_acquired_again_are_void() -> None:
    made = acquired((0, 9))
    made.decide(0, 3, ACCEPT)
    made.decide(6, 7, RENEW)
    outcome = made.acquire([(2, 8)])
    assert outcome is not None
    assert (outcome.ranges, outcome.error is None) == ((range(2, 4),), False)
    made.hand_out([(2, 8)], AcquisitionLock(200.0))
    assert made.decide(2, 8, ACCEPT) == 7
    assert not made.has_renewals
    assert sent(made) == [(0, 8, ACCEPT)]


@pytest.mark.parametrize("renews", [False, True], ids=["alone", "with a renewal"])
def test_a_record_is_acknowledged_once_wherever_its_decision_is_interrupted(renews: bool) -> None:
    """The broker would reject a second acknowledgement, or a renewal, and with it all others of the same lock."""

    def scenario(at: int) -> bool:
        lock = AcquisitionLock(100.0)
        made = acquired((0, 9), lock=lock)
        if renews:
            made.renew([(0, 9)], lock)
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at) as interrupter:
            made.decide(4, 4, ACCEPT)
        first = sent(made)
        made.answered(0, None, 0.0)
        renewed = [(each["first_offset"], each["last_offset"]) for each in made.send_renewals()]
        made.decide(4, 4, ACCEPT)
        assert sorted([first, sent(made)]) == [[], [(4, 4, ACCEPT)]], "exactly one of the two calls counts"
        if renews:
            assert renewed == ([(0, 3), (5, 9)] if first else [(0, 9)])
        return interrupter.has_raised

    interrupted_everywhere(scenario, more_than=10)
