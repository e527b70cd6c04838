"""A small, strict model of a broker's share sessions and share partitions, in virtual time.

It records everything that a real broker would reject: wrong epochs, and acknowledgements that are not ascending, not
acquired, or part of an opening request. Batches have `batch` offsets. A partition may have gaps (offsets without a
record).
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from headrace._machines.cluster import TopicIdPartition
from headrace._machines.share.responses import AcquiredData
from headrace._protocol.messages import SHARE_FETCH
from headrace.types import TopicPartition

TOPIC = uuid.UUID(int=1)
LOCK = 30.0
NO_SESSION, BAD_EPOCH, BAD_STATE, BUSY = 122, 123, 121, 7


def tip(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, number)


class Offsets:
    """Records that are only offsets."""

    def __init__(self, offsets: list[int], delivery_count: int = 1) -> None:
        self.offsets = offsets
        self.delivery_count = delivery_count

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, start: int, length: int) -> Offsets:
        return Offsets(self.offsets[start : start + length], self.delivery_count)

    def runs(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for offset in self.offsets:
            if found and found[-1][1] == offset - 1:
                found[-1] = (found[-1][0], offset)
            else:
                found.append((offset, offset))
        return found


@dataclasses.dataclass(slots=True)
class Entry:
    state: str = "available"  # or acquired, done
    until: float = 0.0
    count: int = 0


class Model:
    """One broker, one member."""

    def __init__(self, logs: Mapping[int, int], batch: int = 5, gaps: frozenset[int] = frozenset()) -> None:
        self.logs = {number: [Entry() for _ in range(size)] for number, size in logs.items()}
        self.batch = batch
        self.gaps = gaps
        self.epoch = 0
        self.session: set[int] = set()
        self.accepted: list[tuple[int, int]] = []
        self.violations: list[str] = []
        self.troubles: dict[int, int] = {}  # error codes of unavailable partitions

    # -- events --------------------------------------------------------------------------------------

    def disconnected(self) -> None:
        """End the session and release its locks."""
        self.epoch = 0
        self.session.clear()
        for log in self.logs.values():
            for entry in log:
                if entry.state == "acquired":
                    entry.state = "available"

    def forgets_session(self) -> None:
        """End the session and keep its locks."""
        self.epoch = -5

    def expire(self, now: float) -> None:
        for log in self.logs.values():
            for entry in log:
                if entry.state == "acquired" and entry.until <= now:
                    entry.state = "available"

    @property
    def left(self) -> int:
        return sum(
            entry.state != "done" and offset not in self.gaps
            for log in self.logs.values()
            for offset, entry in enumerate(log)
        )

    def acquired(self) -> int:
        return sum(entry.state == "acquired" for log in self.logs.values() for entry in log)

    # -- requests ------------------------------------------------------------------------------------------------

    def answer(self, request: Any, now: float) -> Any:
        self.expire(now)
        fields = request.fields
        epoch = fields["share_session_epoch"]
        acks = {
            partition["partition_index"]: partition["acknowledgement_batches"]
            for topic in fields["topics"]
            for partition in topic["partitions"]
        }
        if epoch == 0:
            if any(acks.values()):
                self.violations.append("acknowledgements with an opening request")
            self.epoch, self.session = 1, set()
        elif epoch == -1:
            codes = {number: self._acknowledge(number, batches, now) for number, batches in acks.items()}
            self.disconnected()
            return self._body(request, {}, codes)
        elif epoch != self.epoch:
            return _refusal(NO_SESSION if self.epoch < 0 else BAD_EPOCH)
        else:
            self.epoch += 1
        codes = {number: self._acknowledge(number, batches, now) for number, batches in acks.items() if batches}
        if request.api is not SHARE_FETCH:
            return self._body(request, {}, codes)
        self.session |= set(acks)
        for topic in fields["forgotten_topics_data"]:
            self.session -= set(topic["partitions"])
        return self._body(request, self._acquire(fields, now), codes)

    def _acknowledge(self, number: int, batches: list[dict[str, Any]], now: float) -> int:
        if number in self.troubles:
            return self.troubles[number]
        last = -1
        found = []
        for batch in batches:
            if batch["first_offset"] <= last or batch["last_offset"] < batch["first_offset"]:
                self.violations.append(f"not ascending: {batches}")
            last = batch["last_offset"]
            (kind,) = batch["acknowledge_types"]
            found += [(offset, kind) for offset in range(batch["first_offset"], last + 1)]
        log = self.logs[number]
        if any(log[offset].state != "acquired" for offset, _ in found):
            return BAD_STATE
        for offset, kind in found:
            if kind == 4:
                log[offset].until = now + LOCK
            else:
                log[offset].state = "available" if kind == 2 else "done"
            if kind == 0 and offset not in self.gaps:
                self.violations.append(f"{offset} is no gap")
            if kind in (1, 3) and offset in self.gaps:
                self.violations.append(f"{offset} is a gap")
            if kind == 1:
                self.accepted.append((number, offset))
        return 0

    def _acquire(self, fields: Mapping[str, Any], now: float) -> dict[int, list[tuple[int, int, int]]]:
        """With record_limit exactly max_records offsets, otherwise up to the end of the batch."""
        left = fields["max_records"]
        found: dict[int, list[tuple[int, int, int]]] = {}
        for number in sorted(self.session - self.troubles.keys()):
            for offset, entry in enumerate(self.logs[number]):
                in_batch = found.get(number) and offset % self.batch and found[number][-1][1] == offset - 1
                if entry.state != "available" or (left <= 0 and (fields["share_acquire_mode"] or not in_batch)):
                    continue
                if fields["max_records"] == 0:
                    continue
                left -= 1
                entry.state, entry.until, entry.count = "acquired", now + LOCK, entry.count + 1
                ranges = found.setdefault(number, [])
                if ranges and ranges[-1][1] == offset - 1 and ranges[-1][2] == entry.count:
                    ranges[-1] = (ranges[-1][0], offset, entry.count)
                else:
                    ranges.append((offset, offset, entry.count))
        return found

    def _body(self, request: Any, acquired: Mapping[int, Any], codes: Mapping[int, int]) -> Any:
        partitions = [
            SimpleNamespace(
                partition_index=number,
                error_code=codes.get(number, 0) if request.api is not SHARE_FETCH else self.troubles.get(number, 0),
                error_message=None,
                acknowledge_error_code=codes.get(number, 0),
                acknowledge_error_message=None,
                current_leader=SimpleNamespace(leader_id=-1, leader_epoch=-1),
                records=memoryview(b""),
                acquired_records=tuple(
                    SimpleNamespace(first_offset=first, last_offset=last, delivery_count=count)
                    for first, last, count in acquired.get(number, ())
                ),
            )
            for number in sorted({*acquired, *codes, *(self.troubles if request.api is SHARE_FETCH else ())})
        ]
        return SimpleNamespace(
            error_code=0,
            error_message=None,
            acquisition_lock_timeout=datetime.timedelta(seconds=LOCK),
            responses=(SimpleNamespace(topic_id=TOPIC, partitions=partitions),),
            node_endpoints=(),
        )

    def decode(self, arrival: AcquiredData) -> tuple[list[Offsets], list[tuple[int, int]]]:
        """The records and the gaps of a response."""
        batches = []
        gaps: list[tuple[int, int]] = []
        for first, last, count in arrival.ranges:
            own = [offset for offset in range(first, last + 1) if offset not in self.gaps]
            batches.append(Offsets(own, count))
            gaps += [(offset, offset) for offset in range(first, last + 1) if offset in self.gaps]
        return batches, gaps


def _refusal(code: int) -> Any:
    return SimpleNamespace(
        error_code=code,
        error_message=None,
        acquisition_lock_timeout=datetime.timedelta(0),
        responses=(),
        node_endpoints=(),
    )


TP = TopicPartition("t", 0)
