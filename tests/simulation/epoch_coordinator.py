"""A model of the coordinator of one KIP-848 group, as in Kafka 4.3.

    group epoch      increases with every change of members, subscriptions and topics
    target epoch     the group epoch of the target assignment, which is computed at most once per interval
    member epoch     the target epoch that the member has reached

    member state     what it waits for
    STABLE           nothing
    UNREVOKED        its heartbeat without the partitions that it must revoke, for the rebalance timeout
    UNRELEASED       other members, to revoke partitions of its target

- A member owns a partition from the response that assigns it to the first heartbeat that does not list it.
- Everything is in the log before the response is sent, so a new coordinator resumes where the last one was.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace._machines.group.actions import MemberIdentity
from headrace._protocol.messages import CONSUMER_GROUP_HEARTBEAT, Api
from headrace.types import TopicPartition

from .clock import Alarm, VirtualClock
from .wire import Fields

TopicIdPartition = tuple[uuid.UUID, int]
Reply = Callable[[Fields], None]
Topics = Callable[[], dict[str, tuple[uuid.UUID, int]]]

_LEAVE, _LEAVE_FOR_A_WHILE = -1, -2
_ASSIGNORS = ("uniform", "range")


class MemberState(enum.Enum):
    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


class Refusal(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        self.message = message


@dataclasses.dataclass(eq=False, slots=True)
class _Member:
    id: str
    instance_id: str | None
    session: Alarm
    revocation: Alarm
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    names: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance: float = 0.0
    assigned: dict[TopicIdPartition, int] = dataclasses.field(default_factory=dict)  # since which epoch
    leaving: dict[TopicIdPartition, int] = dataclasses.field(default_factory=dict)  # must be revoked


class EpochCoordinator:
    def __init__(
        self,
        clock: VirtualClock,
        topics: Topics,
        session: float = 12.0,
        interval: float = 3.0,
        assignment_interval: float = 1.0,
    ) -> None:
        self.group_epoch = 0
        self.target_epoch = 0
        self.members: dict[str, _Member] = {}
        self._clock = clock
        self._topics = topics
        self._session = session
        self._interval = interval
        self._assignment_interval = assignment_interval
        self._static: dict[str, str] = {}
        self._target: dict[str, frozenset[TopicIdPartition]] = {}
        self._target_at = -assignment_interval
        self._holder: dict[TopicIdPartition, str] = {}
        self._layout: dict[str, tuple[uuid.UUID, int]] = {}
        self._resolved: dict[str, frozenset[str]] = {}

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, api: Api, fields: Fields, reply: Reply) -> None:
        assert api is CONSUMER_GROUP_HEARTBEAT, f"{api} is not for the coordinator of a KIP-848 group"
        try:
            _check(fields)
            reply(self._leave(fields) if fields["member_epoch"] < 0 else self._heartbeat(fields))
        except Refusal as refusal:
            reply({"error_code": refusal.code, "error_message": refusal.message})

    @staticmethod
    def while_loading(api: Api) -> Fields:
        return {"error_code": ErrorCode.coordinator_load_in_progress}

    def _heartbeat(self, fields: Fields) -> Fields:
        epoch, id = fields["member_epoch"], fields["member_id"]
        if epoch > 0 and self.group_epoch == 0:
            raise Refusal(ErrorCode.group_id_not_found, "no such group")
        owned = _tips(fields["topic_partitions"])
        member = self._member(id, fields["instance_id"], epoch, owned)
        before = dict(member.assigned)
        changed = self._subscribe(member, fields)
        self._follow_topics()
        self._update_target()
        self._reconcile(member, changed, owned)
        member.session.set(self._session)
        answer = {
            "member_id": id,
            "member_epoch": member.epoch,
            "heartbeat_interval": round(self._interval * 1000),
        }
        is_full = (
            fields["rebalance_timeout"] != -1
            and (fields["subscribed_topic_names"] is not None or fields["subscribed_topic_regex"] is not None)
            and owned is not None
        )
        if epoch == 0 or is_full or before.keys() != member.assigned.keys():
            answer["assignment"] = {"topic_partitions": _by_topic(member.assigned)}
        return answer

    def _member(self, id: str, instance: str | None, epoch: int, owned: Collection[TopicIdPartition] | None) -> _Member:
        if instance is None:
            if id not in self.members and epoch == 0:
                self._add(id, None)
            member = self.members.get(id)
            if member is None:
                raise Refusal(ErrorCode.unknown_member_id, f"{id} is not a member")
        elif epoch == 0:
            return self._static_joins(id, instance)
        else:
            member = self._known_static(id, instance)
        _check_epoch(member, epoch, owned)
        return member

    def _static_joins(self, id: str, instance: str) -> _Member:
        old = self.members.get(self._static.get(instance, ""))
        if old is None:
            return self._add(id, instance)
        if old.epoch != _LEAVE_FOR_A_WHILE:
            raise Refusal(ErrorCode.unreleased_instance_id, f"{instance} is {old.id}")
        target = self._target.pop(old.id, frozenset())
        tips = [*old.assigned, *old.leaving]
        self._forget(old)
        member = self._add(id, instance)
        member.names, member.pattern, member.rebalance = old.names, old.pattern, old.rebalance
        member.state, member.assigned = old.state, old.assigned
        self._target[id] = target
        self._hold(member, tips)
        return member

    def _known_static(self, id: str, instance: str) -> _Member:
        holder = self._static.get(instance)
        if holder is None:
            raise Refusal(ErrorCode.unknown_member_id, f"nobody is {instance}")
        if holder != id:
            raise Refusal(ErrorCode.fenced_instance_id, f"{instance} is {holder}")
        return self.members[id]

    def _leave(self, fields: Fields) -> Fields:
        id, instance, epoch = fields["member_id"], fields["instance_id"], fields["member_epoch"]
        if self.group_epoch == 0:
            raise Refusal(ErrorCode.group_id_not_found, "no such group")
        if instance is None:
            if id not in self.members:
                raise Refusal(ErrorCode.unknown_member_id, f"{id} is not a member")
            self._remove(id)
        else:
            member = self._known_static(id, instance)
            if epoch == _LEAVE:
                self._remove(id)
            else:
                member.epoch = _LEAVE_FOR_A_WHILE
                member.revocation.clear()
                member.assigned = dict.fromkeys(member.assigned, 0)
                self._hold(member, [*member.assigned, *member.leaving], {})
        return {"member_id": id, "member_epoch": epoch}

    def commit(self, sent: MemberIdentity, partitions: list[TopicPartition]) -> int:
        if sent.generation < 0 and not self.members:
            return 0
        member = self.members.get(sent.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        topics = self._topics()
        known = [(topics[each.topic][0], each.partition) for each in partitions if each.topic in topics]
        return 0 if all(self.counts(sent, tip) for tip in known) else ErrorCode.stale_member_epoch

    # -- subscriptions and topics ------------------------------------------------------------------------------

    def _subscribe(self, member: _Member, fields: Fields) -> bool:
        names, pattern = fields["subscribed_topic_names"], fields["subscribed_topic_regex"]
        names = member.names if names is None else frozenset(names)
        pattern = member.pattern if pattern is None else pattern
        if fields["rebalance_timeout"] != -1:
            member.rebalance = fields["rebalance_timeout"] / 1000
        names_changed, pattern_changed = names != member.names, pattern != member.pattern
        member.names, member.pattern = names, pattern
        if pattern_changed and pattern and pattern not in self._resolved:
            self._clock.after(0.4, self._resolve, pattern)
            pattern_changed_the_group = False
        else:
            pattern_changed_the_group = pattern_changed
        if names_changed or pattern_changed_the_group or self.group_epoch == 0:
            self.group_epoch += 1
        return names_changed or pattern_changed

    def _resolve(self, pattern: str) -> None:
        found = frozenset(name for name in self._topics() if re.fullmatch(pattern, name))
        if self._resolved.get(pattern) != found:
            self._resolved[pattern] = found
            self.group_epoch += 1

    def _wants(self, member: _Member) -> frozenset[str]:
        return member.names | self._resolved.get(member.pattern, frozenset())

    def _follow_topics(self) -> None:
        topics = self._topics()
        if topics != self._layout:
            self._layout = dict(topics)
            for pattern in sorted(self._resolved):
                self._resolve(pattern)
            self.group_epoch += 1

    def _update_target(self) -> None:
        """Owners keep their partitions as long as the partitions of every topic are balanced."""
        if self.target_epoch == self.group_epoch or self._clock.now < self._target_at + self._assignment_interval:
            return
        self.target_epoch, self._target_at = self.group_epoch, self._clock.now
        subscribers: defaultdict[str, list[str]] = defaultdict(list)
        for id in self.members:
            for name in self._wants(self.members[id]):
                subscribers[name].append(id)
        owners = {tip: id for id, tips in self._target.items() for tip in tips}
        targets: dict[str, list[TopicIdPartition]] = {id: [] for id in self.members}
        for turn, (name, (topic, count)) in enumerate(sorted(self._layout.items())):
            self._assign_topic(topic, count, sorted(subscribers.get(name, ())), turn, owners, targets)
        self._target = {id: frozenset(tips) for id, tips in targets.items()}

    @staticmethod
    def _assign_topic(
        topic: uuid.UUID,
        count: int,
        ids: list[str],
        turn: int,
        owners: dict[TopicIdPartition, str],
        targets: dict[str, list[TopicIdPartition]],
    ) -> None:
        if not ids:
            return
        turn %= len(ids)  # so that the remainders of topics go to different members
        ids = ids[turn:] + ids[:turn]
        room = {id: count // len(ids) + (place < count % len(ids)) for place, id in enumerate(ids)}
        free = []
        for tip in ((topic, number) for number in range(count)):
            owner = owners.get(tip, "")
            if room.get(owner, 0) > 0:
                room[owner] -= 1
                targets[owner].append(tip)
            else:
                free.append(tip)
        takers = (id for id in ids for _ in range(room[id]))
        for tip, id in zip(free, takers, strict=True):
            targets[id].append(tip)

    # -- reconciliation ----------------------------------------------------------------------------------------

    def _reconcile(self, member: _Member, changed: bool, owned: Collection[TopicIdPartition] | None) -> None:
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            if changed:
                self._drop_unsubscribed(member, owned)
            return
        if member.state is MemberState.UNREVOKED and _still_owns(owned, member.leaving):
            if changed:
                self._drop_unsubscribed(member, owned)
            return
        wanted = {self._layout[name][0] for name in self._wants(member) if name in self._layout}
        target = {tip for tip in self._target.get(member.id, ()) if tip[0] in wanted}
        kept = {tip: epoch for tip, epoch in member.assigned.items() if tip in target}
        leaving = {tip: epoch for tip, epoch in member.assigned.items() if tip not in target}
        if leaving and _still_owns(owned, leaving):
            self._move(member, member.epoch, MemberState.UNREVOKED, kept, leaving)
            return
        free = {tip for tip in target if tip not in kept and self._holder.get(tip, member.id) == member.id}
        # Partitions revoked by this heartbeat are still its own and may be assigned again at once.
        state = MemberState.STABLE if len(kept) + len(free) == len(target) else MemberState.UNRELEASED
        given = dict.fromkeys(sorted(free), self.target_epoch)
        self._move(member, self.target_epoch, state, kept | given, {})

    def _drop_unsubscribed(self, member: _Member, owned: Collection[TopicIdPartition] | None) -> None:
        wanted = {self._layout[name][0] for name in self._wants(member) if name in self._layout}
        kept = {tip: epoch for tip, epoch in member.assigned.items() if tip[0] in wanted}
        if len(kept) == len(member.assigned):
            return
        leaving = {tip: epoch for tip, epoch in member.assigned.items() if tip not in kept} | member.leaving
        if _still_owns(owned, leaving):
            self._move(member, member.epoch, MemberState.UNREVOKED, kept, leaving)
        else:
            self._move(member, member.epoch, member.state, kept, member.leaving)

    def _move(
        self,
        member: _Member,
        epoch: int,
        state: MemberState,
        assigned: dict[TopicIdPartition, int],
        leaving: dict[TopicIdPartition, int],
    ) -> None:
        same = (member.epoch, member.state, member.assigned, member.leaving) == (epoch, state, assigned, leaving)
        if same:
            return
        before = [*member.assigned, *member.leaving]
        member.previous_epoch, member.epoch = member.epoch, epoch
        member.state, member.assigned = state, assigned
        self._hold(member, before, leaving)
        if state is MemberState.UNREVOKED:
            member.revocation.set(member.rebalance)
        else:
            member.revocation.clear()

    def _hold(
        self, member: _Member, before: Iterable[TopicIdPartition], leaving: dict[TopicIdPartition, int] | None = None
    ) -> None:
        if leaving is not None:
            member.leaving = leaving
        for tip in before:
            self._holder.pop(tip, None)
        for tip in (*member.assigned, *member.leaving):
            holder = self._holder.setdefault(tip, member.id)
            assert holder == member.id, f"the model assigns {tip} of {holder} to {member.id}"

    # -- members -----------------------------------------------------------------------------------------------

    def _add(self, id: str, instance: str | None) -> _Member:
        session = Alarm(self._clock, lambda: self._remove(id))
        revocation = Alarm(self._clock, lambda: self._remove(id))
        self.members[id] = member = _Member(id, instance, session, revocation)
        if instance is not None:
            self._static[instance] = id
        return member

    def _remove(self, id: str) -> None:
        self._forget(self.members[id])
        self._target.pop(id, None)
        self.group_epoch += 1

    def _forget(self, member: _Member) -> None:
        del self.members[member.id]
        member.session.clear()
        member.revocation.clear()
        if member.instance_id is not None:
            del self._static[member.instance_id]
        for tip in (*member.assigned, *member.leaving):
            self._holder.pop(tip, None)

    # -- another broker takes over -----------------------------------------------------------------------------

    def unload(self) -> None:
        for each in self.members.values():
            each.session.clear()
            each.revocation.clear()

    def load(self) -> None:
        self._target_at = self._clock.now - self._assignment_interval
        for each in self.members.values():
            each.session.set(self._session)
            if each.state is MemberState.UNREVOKED:
                each.revocation.set(each.rebalance)

    # -- queries of the simulation -----------------------------------------------------------------------------

    def counts(self, sent: MemberIdentity, tip: Any) -> bool:
        """Whether the group considers this member the owner of the partition."""
        member = self.members.get(sent.member_id)
        if member is None or sent.generation < 0 or sent.generation > member.epoch:
            return False
        since = member.assigned.get(tip, member.leaving.get(tip))
        return sent.generation == member.epoch or (since is not None and sent.generation >= since)

    @property
    def position(self) -> int:
        """Increases with every rebalance that is started."""
        return self.group_epoch


def _check(fields: Fields) -> None:
    def demand(condition: bool, message: str) -> None:
        if not condition:
            raise Refusal(ErrorCode.invalid_request, message)

    for name in ("member_id", "group_id", "instance_id", "rack_id"):
        demand(fields.get(name) != "", f"{name} can't be empty")
    epoch = fields["member_epoch"]
    if epoch == 0:
        demand(fields["rebalance_timeout"] != -1, "the rebalance timeout must be in the first request")
        demand(
            fields["topic_partitions"] is not None and not fields["topic_partitions"],
            "a joining member owns no partitions",
        )
        names, pattern = fields["subscribed_topic_names"], fields["subscribed_topic_regex"]
        demand(names is not None or pattern is not None, "a joining member must have a subscription")
    demand(epoch >= _LEAVE_FOR_A_WHILE, "no such epoch")
    demand(epoch != _LEAVE_FOR_A_WHILE or fields["instance_id"] is not None, "-2 is for static members")
    if fields.get("server_assignor") not in (None, *_ASSIGNORS):
        raise Refusal(ErrorCode.unsupported_assignor, "uniform, range")


def _check_epoch(member: _Member, epoch: int, owned: Collection[TopicIdPartition] | None) -> None:
    if epoch == 0 or epoch == member.epoch:
        return
    may_have_missed_the_answer = (
        epoch < member.epoch
        and epoch == member.previous_epoch
        and owned is not None
        and all(tip in member.assigned for tip in owned)
    )
    if not may_have_missed_the_answer:
        raise Refusal(ErrorCode.fenced_member_epoch, f"{member.id} is at {member.epoch}, not at {epoch}")


def _still_owns(owned: Collection[TopicIdPartition] | None, leaving: Collection[TopicIdPartition]) -> bool:
    return owned is None or any(tip in leaving for tip in owned)


def _tips(topic_partitions: list[Fields] | None) -> frozenset[TopicIdPartition] | None:
    if topic_partitions is None:
        return None
    return frozenset((each["topic_id"], number) for each in topic_partitions for number in each["partitions"])


def _by_topic(tips: Iterable[TopicIdPartition]) -> list[Fields]:
    topics: defaultdict[uuid.UUID, list[int]] = defaultdict(list)
    for topic, number in sorted(tips):
        topics[topic].append(number)
    return [{"topic_id": topic, "partitions": numbers} for topic, numbers in topics.items()]
