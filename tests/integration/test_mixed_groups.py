"""One group of headrace, confluent-kafka and Java members. They come and go while records flow."""

from __future__ import annotations

import pytest

from support.admin import Admin, unique
from support.group_members import COMMANDS, Membership
from support.peer_process import Peer, Peers
from support.steady_writer import SteadyWriter

pytest_plugins = ["support.group_fixtures"]

PARTITIONS = 12
LIMIT = 20_000
KINDS = ("headrace", "confluent", "java")


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range", None], ids=["cooperative", "range", "consumer"])
def test_members_of_all_clients_come_and_go(strategy: str | None, group_admin: Admin) -> None:
    """All start together; then each is joined by another of its kind and leaves.

    Between any two changes each partition has one owner, which reads it. In the end all is read, and nothing was read
    again that its owner had committed before giving it up.
    """
    servers = group_admin.bootstrap_servers
    topic = group_admin.create("mixed", PARTITIONS)
    membership = Membership(servers, unique("mixed"), topic, strategy)

    with (
        Peers((topic, number) for number in range(PARTITIONS)) as peers,
        SteadyWriter(servers, topic, PARTITIONS, limit=LIMIT) as writer,
    ):

        def start(kind: str, number: int) -> Peer:
            name = f"{kind}-{number}"
            return peers.start(name, COMMANDS[kind](membership, name, peers.directory))

        ledger = peers.ledger
        members = {kind: start(kind, 1) for kind in KINDS}
        peers.wait_at_rest(members.values())
        peers.wait_flowing()
        for kind in KINDS:
            successor = start(kind, 2)
            peers.wait_at_rest([*members.values(), successor])
            peers.wait_flowing()
            peers.stop(members[kind])
            members[kind] = successor
            peers.wait_at_rest(members.values())
            peers.wait_flowing()
        ends = writer.finish()
        peers.wait("all is read", lambda: not ledger.unread(ends))
        peers.stop(*members.values())

    assert ledger.unread(ends) == []
    assert [str(repeat) for repeat in ledger.broken()] == []
    assert ledger.overlaps() == []
    assert ledger.strays == []
    # The others may have commits refused (see the ledger); headrace commits all that it reads before giving it up.
    ours = [stint for stint in ledger.stints if stint.member.startswith("headrace")]
    assert [stint for stint in ours if stint.uncommitted or stint.ending == "lost"] == []
    assert [why for member, why in ledger.refused if member.startswith("headrace")] == []
