"""Members with two lanes (`programs/two_lane_member.py`) as child processes, with one ledger for their events."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from support.ledgers.lane_ledger import LaneLedger
from support.members.child import TIMEOUT, Child, T, wait_for_news


class LaneMember(Child):
    """One member, created by `LaneMembers.start`. Read its fields with the lock of the news held, or after its end."""

    def __init__(self, name: str, topic: str, plan: Mapping[str, Any]) -> None:
        self.name = name
        self.plan = plan
        self.words: list[str] = []
        """The names of its events."""
        self.other: deque[str] = deque(maxlen=200)
        """Lines that are no events: log lines, a traceback, the crash point."""
        self.handed: dict[str | None, int] = {}
        self.is_gone = False
        super().__init__([sys.executable, "-m", "support.programs.two_lane_member", topic, json.dumps(plan)])


class LaneMembers:
    """The members of one group, past and present. None outlives the `with` block."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.ledger = LaneLedger()
        self._all: list[tuple[LaneMember, threading.Thread]] = []
        self._news = threading.Condition()

    def start(self, *, settings: Mapping[str, Any], **plan: Any) -> LaneMember:
        """Start a member. Its name is its client id, unless the settings have another one."""
        name = f"member-{len(self._all) + 1}"
        member = LaneMember(name, self.topic, {"settings": {"client_id": name, **settings}, **plan})
        reader = threading.Thread(target=self._read, args=(member,), name=member.name, daemon=True)
        self._all.append((member, reader))
        reader.start()
        return member

    def _read(self, member: LaneMember) -> None:
        for line in member.lines():
            with self._news:
                if line.startswith("{") and line.endswith("}\n"):
                    self._take(member, json.loads(line))
                else:
                    member.other.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            member.is_gone = True
            self._news.notify_all()

    def _take(self, member: LaneMember, said: dict[str, Any]) -> None:
        member.words.append(said["name"])
        self.ledger.take(member.name, said, only_done=member.plan.get("mode") == "done")
        if said["name"] == "handed":
            for lane, _, start, end in said["runs"]:
                member.handed[lane] = member.handed.get(lane, 0) + end - start

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, what: str, look: Callable[[], T], timeout: float = TIMEOUT) -> T:
        """Return the first true value of `look`, which is called after every event."""
        return wait_for_news(self._news, what, look, self.report, timeout)

    def wait_gone(self, member: LaneMember) -> None:
        self.wait(f"{member.name} is gone", lambda: member.is_gone)

    def stop(self, *members: LaneMember) -> None:
        """Stop the members properly and wait for their end."""
        for member in members:
            self.wait(f"{member.name} has started", lambda m=member: m.is_gone or "started" in m.words)  # type: ignore[misc]
            member.terminate()
        for member in members:
            self.wait_gone(member)
            assert member.words[-1:] == ["closed"], self.report()

    def report(self) -> str:
        lines = []
        for member, _ in self._all:
            lines.append(
                f"{member.name}: {'gone' if member.is_gone else 'there'}, {member.handed}, {member.words[-6:]}"
            )
            lines += [f"    | {line}" for line in member.other]
        return "\n".join(lines)

    # -- the end -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for member, reader in self._all:
            member.process.close()
            reader.join()
