"""A model of the coordinator of one classic group, as in Kafka 4.3.

    state        leaves it when
    EMPTY        a member joins: PREPARING, for at least the initial delay
    PREPARING    every member has joined, or the rebalance timeout has passed: COMPLETING (EMPTY if nobody is left)
    COMPLETING   the leader's SyncGroup: STABLE. A change of members: PREPARING
    STABLE       a change of members, of a member's metadata, or the leader joining: PREPARING

- The log has the group as it last became STABLE or EMPTY. Another broker resumes from that.
- A static member is replaced by the next member with its instance id. In a STABLE group that changes nothing else.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace._machines.group.actions import MemberIdentity
from headrace._protocol.group_data import read_assignment
from headrace._protocol.messages import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, Api
from headrace.types import TopicPartition

from .clock import Alarm, VirtualClock
from .wire import Fields

Reply = Callable[[Fields], None]

_NEW_MEMBER_JOIN_TIMEOUT = 300.0
_SHORTEST_SESSION, _LONGEST_SESSION = 6.0, 1800.0
_LONGEST_REASON = 255


class GroupState(enum.Enum):
    EMPTY = "empty"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"


@dataclasses.dataclass(eq=False, slots=True)
class _Member:
    id: str
    instance_id: str | None
    session: float
    rebalance: float
    protocols: dict[str, bytes]
    alarm: Alarm
    assignment: bytes = b""
    joined: int = -1  # its last generation
    is_new: bool = True
    join: Reply | None = None
    sync: Reply | None = None


class ClassicCoordinator:
    def __init__(self, clock: VirtualClock, initial_delay: float = 3.0) -> None:
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol: str | None = None
        self.leader: str | None = None
        self.rebalances = 0
        self.members: dict[str, _Member] = {}
        self.kept_assignment = False
        """Whether a static member has rejoined since the last assignment."""
        self._clock = clock
        self._initial_delay = initial_delay
        self._pending: dict[str, Alarm] = {}
        self._unsynced: set[str] = set()
        self._supported: Counter[str] = Counter()
        self._static: dict[str, str] = {}
        self._joining = 0
        self._was_empty = False
        self._newcomer = False
        self._remaining = 0.0
        self._join_alarm = Alarm(clock, self._join_timeout)
        self._sync_alarm = Alarm(clock, self._sync_timeout)
        self._ids = itertools.count(1)
        self._persisted: tuple[Any, ...] = ()
        self._persist()

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, api: Api, fields: Fields, reply: Reply) -> None:
        if api is JOIN_GROUP:
            self._join_group(fields, reply)
        elif api is SYNC_GROUP:
            self._sync_group(fields, reply)
        elif api is HEARTBEAT:
            reply({"error_code": self._heartbeat(fields)})
        elif api is LEAVE_GROUP:
            self._leave_group(fields, reply)
        else:
            raise AssertionError(f"{api} is not for the coordinator of a classic group")

    @staticmethod
    def while_loading(api: Api) -> Fields:
        return {"error_code": 0 if api is HEARTBEAT else ErrorCode.coordinator_load_in_progress}

    def _join_group(self, fields: Fields, reply: Reply) -> None:
        assert fields["protocol_type"] == "consumer"
        assert fields["protocols"]
        assert len(fields["reason"] or "") <= _LONGEST_REASON
        id, session = fields["member_id"], fields["session_timeout"] / 1000
        if not _SHORTEST_SESSION <= session <= _LONGEST_SESSION:
            reply({"error_code": ErrorCode.invalid_session_timeout, "member_id": id})
        elif not self._supports(fields["protocols"]):
            reply({"error_code": ErrorCode.inconsistent_group_protocol, "member_id": id})
        elif id:
            self._join_known(id, fields, reply)
        elif fields["group_instance_id"] is None:
            id = f"member-{next(self._ids)}"
            self._pending[id] = alarm = Alarm(self._clock, lambda: self._pending_timeout(id))
            alarm.set(session)
            reply({"error_code": ErrorCode.member_id_required, "member_id": id})
        else:
            instance = fields["group_instance_id"]
            id = f"{instance}-{next(self._ids)}"
            if instance in self._static:
                self._replace(self._static[instance], id, fields, reply)
            else:
                self._add(id, fields, reply)

    def _join_known(self, id: str, fields: Fields, reply: Reply) -> None:
        if id in self._pending:
            assert fields["group_instance_id"] is None
            self._pending.pop(id).clear()
            self._add(id, fields, reply)
            return
        if code := self._refusal(id, fields["group_instance_id"]):
            reply({"error_code": code, "member_id": id})
            return
        member = self.members[id]
        same = member.protocols == _protocols(fields)
        if self.state is GroupState.PREPARING:
            self._update(member, fields, reply)
            self._complete_join_if_all_are_there()
        elif same and (self.state is GroupState.COMPLETING or id != self.leader):
            reply(self._joined(member, with_members=self.state is GroupState.COMPLETING))
        else:
            self._update(member, fields, reply)
            self._prepare()

    def _add(self, id: str, fields: Fields, reply: Reply) -> None:
        alarm = Alarm(self._clock, lambda: self._session_timeout(id))
        member = self.members[id] = _Member(id, fields["group_instance_id"], 0, 0, {}, alarm)
        if member.instance_id is not None:
            self._static[member.instance_id] = id
        if self.leader is None:
            self.leader = id
        self._update(member, fields, reply)
        alarm.set(_NEW_MEMBER_JOIN_TIMEOUT)
        if self.state is GroupState.PREPARING:
            self._newcomer = self._newcomer or self._was_empty
            self._complete_join_if_all_are_there()
        else:
            self._prepare()

    def _replace(self, old_id: str, id: str, fields: Fields, reply: Reply) -> None:
        old = self.members.pop(old_id)
        old.alarm.clear()
        self._answer_join(old, {"error_code": ErrorCode.fenced_instance_id, "member_id": old_id})
        self._answer_sync(old, {"error_code": ErrorCode.fenced_instance_id})
        alarm = Alarm(self._clock, lambda: self._session_timeout(id))
        member = self.members[id] = dataclasses.replace(
            old, id=id, alarm=alarm, join=None, sync=None, is_new=False, protocols=old.protocols
        )
        assert old.instance_id is not None
        self._static[old.instance_id] = id
        if self.leader == old_id:
            self.leader = id
        self._update(member, fields, reply)
        alarm.set(member.session)
        if self.state is GroupState.STABLE and self._choice() == self.protocol:
            leads = id == self.leader
            self.kept_assignment = True
            self._persist()
            self._answer_join(member, {**self._joined(member, with_members=leads), "skip_assignment": leads})
        elif self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there()
        else:
            self._prepare()

    def _sync_group(self, fields: Fields, reply: Reply) -> None:
        id = fields["member_id"]
        if code := self._refusal(id, fields["group_instance_id"], fields["generation_id"]):
            reply({"error_code": code})
            return
        if fields["protocol_name"] != self.protocol or fields["protocol_type"] != "consumer":
            reply({"error_code": ErrorCode.inconsistent_group_protocol})
            return
        member = self.members[id]
        if self.state is GroupState.PREPARING:
            reply({"error_code": ErrorCode.rebalance_in_progress})
            return
        self._unsynced.discard(id)
        if self.state is GroupState.STABLE:
            reply(self._synced(member))
            return
        member.sync = reply
        if id == self.leader:
            assignments = {each["member_id"]: each["assignment"] for each in fields["assignments"]}
            for each in self.members.values():
                each.assignment = assignments.get(each.id, b"")
            self.state = GroupState.STABLE
            self.kept_assignment = False
            self._persist()
            for each in self.members.values():
                self._answer_sync(each, self._synced(each))

    def _heartbeat(self, fields: Fields) -> int:
        id = fields["member_id"]
        if code := self._refusal(id, fields["group_instance_id"], fields["generation_id"]):
            return code
        self.members[id].alarm.set(self.members[id].session)
        return ErrorCode.rebalance_in_progress if self.state is GroupState.PREPARING else 0

    def _leave_group(self, fields: Fields, reply: Reply) -> None:
        answers = []
        for each in fields["members"]:
            id, instance = each["member_id"], each["group_instance_id"]
            code = 0
            if id in self._pending:
                self._pending.pop(id).clear()
            elif not (code := self._refusal(id, instance)):
                self._remove(id)
            answers.append({"member_id": id, "group_instance_id": instance, "error_code": code})
        reply({"members": answers})
        if any(not each["error_code"] for each in answers):
            self._after_a_loss()

    def commit(self, sent: MemberIdentity, partitions: list[TopicPartition]) -> int:
        if sent.generation < 0 and self.state is GroupState.EMPTY:
            return 0
        if sent.generation < 0 and not sent.member_id and sent.instance_id is None:
            return ErrorCode.unknown_member_id
        if code := self._refusal(sent.member_id, sent.instance_id, sent.generation):
            return code
        if self.state is GroupState.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self.members[sent.member_id].alarm.set(self.members[sent.member_id].session)
        return 0

    def _refusal(self, id: str, instance: str | None, generation: int | None = None) -> int:
        if instance is not None and self._static.get(instance, id) != id:
            return ErrorCode.fenced_instance_id
        if id not in self.members:
            return ErrorCode.unknown_member_id
        return 0 if generation is None or generation == self.generation else ErrorCode.illegal_generation

    # -- the rebalance -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self.state is GroupState.COMPLETING:
            for each in self.members.values():
                each.assignment = b""
                self._answer_sync(each, {"error_code": ErrorCode.rebalance_in_progress})
        self._unsynced.clear()
        self._sync_alarm.clear()
        self._was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        self.rebalances += 1
        if self._was_empty:
            self._newcomer = False
            self._remaining = max(self._timeout() - self._initial_delay, 0.0)
            self._join_alarm.set(self._initial_delay)
        elif self._all_are_there():
            self._complete_join()
        else:
            self._join_alarm.set(self._timeout())

    def _join_timeout(self) -> None:
        if self._was_empty and self._newcomer and self._remaining > 0:
            self._newcomer = False
            delay = min(self._initial_delay, self._remaining)
            self._remaining = max(self._remaining - self._initial_delay, 0.0)
            self._join_alarm.set(delay)
        else:
            self._complete_join()

    def _complete_join_if_all_are_there(self) -> None:
        if not self._was_empty and self._all_are_there():
            self._complete_join()

    def _all_are_there(self) -> bool:
        return self._joining == len(self.members) and not self._pending

    def _complete_join(self) -> None:
        self._join_alarm.clear()
        for each in [each for each in self.members.values() if each.join is None and each.instance_id is None]:
            self._remove(each.id)
        if self.members:
            assert self.leader is not None
            if self.members[self.leader].join is None:
                joined = next((each.id for each in self.members.values() if each.join is not None), None)
                if joined is None:
                    self._join_alarm.set(self._timeout())
                    return
                self.leader = joined
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol = self.leader = None
            self._persist()
            return
        self.protocol = self._choice()
        self.state = GroupState.COMPLETING
        self._unsynced = set(self.members)
        self._sync_alarm.set(self._timeout())
        for each in list(self.members.values()):
            if each.join is not None:
                each.joined = self.generation
            self._answer_join(each, self._joined(each, with_members=each.id == self.leader))
            each.alarm.set(each.session)
            each.is_new = False

    def _sync_timeout(self) -> None:
        if self._unsynced:
            for id in sorted(self._unsynced & self.members.keys()):  # a static member may have been replaced
                self._remove(id)
            self._prepare()

    def _session_timeout(self, id: str) -> None:
        member = self.members.get(id)
        if member is not None and (member.is_new or (member.join is None and member.sync is None)):
            self._remove(id)
            self._after_a_loss()

    def _pending_timeout(self, id: str) -> None:
        self._pending.pop(id, None)
        if self.state is GroupState.PREPARING and self._all_are_there():
            self._complete_join()

    def _after_a_loss(self) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare()
        elif self.state is GroupState.PREPARING:
            self._complete_join_if_all_are_there()

    # -- members -----------------------------------------------------------------------------------------------

    def _update(self, member: _Member, fields: Fields, reply: Reply) -> None:
        self._supported.subtract(list(member.protocols))
        member.protocols = _protocols(fields)
        self._supported.update(list(member.protocols))
        member.session = fields["session_timeout"] / 1000
        member.rebalance = fields["rebalance_timeout"] / 1000
        if member.join is None:
            self._joining += 1
        member.join = reply  # an earlier request of this member gets no response

    def _remove(self, id: str) -> None:
        member = self.members.pop(id)
        member.alarm.clear()
        self._answer_join(member, {"error_code": ErrorCode.unknown_member_id})
        self._supported.subtract(list(member.protocols))
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._unsynced.discard(id)
        if self.leader == id:
            self.leader = next(iter(self.members), None)

    def _answer_join(self, member: _Member, fields: Fields) -> None:
        if member.join is not None:
            reply, member.join = member.join, None
            self._joining -= 1
            reply(fields)

    def _answer_sync(self, member: _Member, fields: Fields) -> None:
        if member.sync is not None:
            reply, member.sync = member.sync, None
            member.alarm.set(member.session)
            reply(fields)

    def _joined(self, member: _Member, with_members: bool) -> Fields:
        assert self.protocol is not None
        members: list[Fields] = []
        if with_members and member.id == self.leader:
            members = [
                {"member_id": each.id, "group_instance_id": each.instance_id, "metadata": each.protocols[self.protocol]}
                for each in self.members.values()
            ]
        return {
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.id,
            "members": members,
        }

    def _synced(self, member: _Member) -> Fields:
        return {"protocol_type": "consumer", "protocol_name": self.protocol, "assignment": member.assignment}

    def _timeout(self) -> float:
        return max((each.rebalance for each in self.members.values()), default=0.0)

    def _supports(self, protocols: list[Fields]) -> bool:
        count = len(self.members)
        return self.state is GroupState.EMPTY or any(self._supported[each["name"]] == count for each in protocols)

    def _choice(self) -> str:
        """Each member votes for the first of its protocols that all members support."""
        count = len(self.members)
        votes = Counter(
            next(name for name in each.protocols if self._supported[name] == count) for each in self.members.values()
        )
        return votes.most_common(1)[0][0]

    # -- another broker takes over -----------------------------------------------------------------------------

    def _persist(self) -> None:
        kept = [
            (each.id, each.instance_id, each.session, each.rebalance, each.protocols, each.assignment, each.joined)
            for each in self.members.values()
        ]
        self._persisted = (self.generation, self.protocol, self.leader, kept)

    def unload(self) -> None:
        """This broker loses the group; all waiting requests get an error."""
        for each in self.members.values():
            each.alarm.clear()
            self._answer_join(each, {"error_code": ErrorCode.not_coordinator, "member_id": each.id})
            self._answer_sync(each, {"error_code": ErrorCode.not_coordinator})
            each.alarm.clear()
        for alarm in (self._join_alarm, self._sync_alarm, *self._pending.values()):
            alarm.clear()

    def load(self) -> None:
        """Another broker loads the group from the log."""
        self.generation, self.protocol, self.leader, kept = self._persisted
        self._pending, self._unsynced, self._static, self._supported = {}, set(), {}, Counter()
        self.members, self._joining, self._was_empty = {}, 0, False
        for id, instance, session, rebalance, protocols, assignment, joined in kept:
            alarm = Alarm(self._clock, lambda id=id: self._session_timeout(id))  # type: ignore[misc]
            member = _Member(id, instance, session, rebalance, protocols, alarm, assignment, joined, is_new=False)
            self.members[id] = member
            self._supported.update(list(protocols))
            if instance is not None:
                self._static[instance] = id
            alarm.set(session)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    # -- queries of the simulation -----------------------------------------------------------------------------

    def counts(self, sent: MemberIdentity, partition: Any) -> bool:
        """Whether the group considers this member the owner of its partitions: it is in the group's generation, or has
        joined the next one without knowing it yet."""
        member = self.members.get(sent.member_id)
        return sent.generation >= 0 and member is not None and member.joined == self.generation

    def given_away(self) -> set[TopicPartition]:
        """The partitions that the leader has assigned."""
        return {tp for each in self.members.values() for tp in read_assignment(each.assignment)[0]}

    @property
    def position(self) -> int:
        """Increases with every completed rebalance."""
        return self.generation


def _protocols(fields: Fields) -> dict[str, bytes]:
    return {each["name"]: each["metadata"] for each in fields["protocols"]}
