"""What the leader of a classic group works out for all of its members."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import HeadraceError, StateError
from ..protocol.group_data import read_subscription, write_assignment
from .assignors import Assignor, GroupMember


def share_out(
    assignor: Assignor, members: Mapping[str, tuple[str | None, bytes]], layout: Mapping[str, int]
) -> dict[str, bytes]:
    """The assignment of each member, as it is sent to it. `layout` has the number of partitions of each topic.

    Raises StateError if the assignor does, or if it names a member or a partition that is not there.
    """
    group = {
        member: GroupMember.of(read_subscription(metadata), instance_id)
        for member, (instance_id, metadata) in members.items()
    }
    try:
        shares = {member: frozenset(partitions) for member, partitions in assignor.assign(group, layout).items()}
    except HeadraceError:
        raise
    except Exception as error:
        raise StateError(f"the assignor {assignor.name} raised {error!r}") from error
    if strangers := shares.keys() - group.keys():
        raise StateError(f"the assignor {assignor.name} gave partitions to {sorted(strangers)}, who are not members")
    for partitions in shares.values():
        for tp in partitions:
            if not 0 <= tp.partition < layout.get(tp.topic, 0):
                raise StateError(f"the assignor {assignor.name} gave {tp} away, which does not exist")
    return {member: write_assignment(shares.get(member, frozenset())) for member in group}
