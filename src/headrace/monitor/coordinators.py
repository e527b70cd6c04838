"""Which broker is to list a group, and why it may not: whether a group that nobody lists is gone. Nothing here does I/O
or reads a clock.

    the leader of the group's partition of __consumer_offsets is away          the group is unknown
    it does not list its groups                                                unknown
    it was elected a moment ago: it lists what it has loaded, without error    unknown
    otherwise                                                                  the group was deleted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._aio.survey.found import FoundLog
from .last_known import broker_name, leader_error
from .model import BrokerView, GroupView

OFFSETS_TOPIC = "__consumer_offsets"
_LOADS_WITHIN = 30.0  # seconds


class Coordinators:
    """For one cluster. `note` takes each pass, in order; then `why_away` answers for it."""

    def __init__(self) -> None:
        self._at = 0.0
        self._logs: Sequence[FoundLog] = ()
        self._brokers: Mapping[int, BrokerView] = {}
        self._broken: Mapping[int, str] = {}
        self._elections: dict[int, tuple[int, float]] = {}  # by partition: the leader's epoch, and when it was seen

    def note(
        self, at: float, logs: Sequence[FoundLog], brokers: Mapping[int, BrokerView], broken: Mapping[int, str]
    ) -> None:
        """`logs` are the partitions of `__consumer_offsets`, none if this client may not describe the topic; `broken`
        the brokers that did not list their groups."""
        for log in logs:
            epoch, _ = self._elections.get(log.tp.partition, (None, 0.0))
            if epoch != log.leader_epoch:
                # How the partition was found is no election.
                self._elections[log.tp.partition] = (log.leader_epoch, at if epoch is not None else at - _LOADS_WITHIN)
        self._at, self._logs, self._brokers, self._broken = at, logs, brokers, broken

    def why_away(self, group: GroupView) -> str | None:
        """Why no broker may have listed the group of an earlier pass. None if it does not exist any more."""
        node = -1 if group.coordinator is None else group.coordinator
        if self._logs:
            log = self._logs[coordinator_partition(group.name, len(self._logs))]
            node = log.leader
            if self._is_away(node):
                missing = {number: it for number, it in self._brokers.items() if it.is_missing}
                return f"its coordinator is away: {log.tp}: {leader_error(log, missing)}"
            _, elected = self._elections[log.tp.partition]
            if self._at < elected + _LOADS_WITHIN:
                return f"its coordinator, {broker_name(self._brokers[node])}, was elected a moment ago"
        if node in self._broken or self._is_away(node):
            name = f"broker {node}" if node not in self._brokers else broker_name(self._brokers[node])
            return f"its coordinator, {name}, does not answer"
        return None

    def _is_away(self, node: int) -> bool:
        return node not in self._brokers or self._brokers[node].is_missing


def coordinator_partition(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` whose leader is the coordinator of the group."""
    code = 0
    data = group.encode("utf-16-be", errors="surrogatepass")
    for at in range(0, len(data), 2):
        code = (31 * code + int.from_bytes(data[at : at + 2])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code & 0x80000000 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
