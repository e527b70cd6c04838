"""Members of a group as child processes, with one ledger for all their events.

A `Peer` is started, and then stopped properly (SIGTERM), killed, paused or resumed. Reader threads put its events into
the ledger; `Peers.wait` waits for a condition there. No child outlives the `with` block or this process.
"""

from __future__ import annotations

import functools
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from support.ledgers.group_ledger import Ledger
from support.members.child import TIMEOUT, Child, T, wait_for_news
from support.members.events import Closed, Ended, Event, TopicAndPartition, milliseconds, parse

_REMEMBERED_LINES = 40


class Peer(Child):
    """One member, created by `Peers.start`."""

    def __init__(self, name: str, command: Sequence[str], take: Callable[[str, Event], None]) -> None:
        self.name = name
        self.events: list[Event] = []
        self.said: deque[str] = deque(maxlen=_REMEMBERED_LINES)
        """The last lines of output that are no events."""
        self._take = take
        self._tells = "support.programs.headrace_member" in command
        super().__init__(command)
        self._reader = threading.Thread(target=self._read, name=f"peer {name}", daemon=True)

    def listen(self) -> None:
        """Start to take its events."""
        self._reader.start()

    def _read(self) -> None:
        try:
            for line in self.lines():
                event = parse(line) if line.endswith("\n") else None
                if event is None:
                    self.said.append(line.rstrip())
                else:
                    self._take(self.name, event)
        finally:
            self._take(self.name, Ended(milliseconds()))

    def ask_for_state(self, timeout: float = 3.0) -> None:
        """Make a headrace member print the state of its fetching among its other lines."""
        if not self._tells or self.gone:
            return
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + timeout
        while not any(line == "state: end" for line in self.said) and time.monotonic() < deadline:
            time.sleep(0.02)  # polling its output

    @property
    def closed(self) -> bool:
        """Whether it has closed its consumer properly."""
        return any(isinstance(event, Closed) for event in self.events)

    @property
    def gone(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Ended)

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self.process.close()
        self._reader.join()


class Peers:
    """The members of one group, past and present.

    :param partitions: the partitions of the topics that the group consumes.
    """

    def __init__(self, partitions: Iterable[TopicAndPartition]) -> None:
        self.ledger = Ledger(partitions)
        self._peers: dict[str, Peer] = {}
        self._news = threading.Condition()
        self._scratch = tempfile.TemporaryDirectory(prefix="peers-")

    @property
    def directory(self) -> Path:
        """A directory for files of members."""
        return Path(self._scratch.name)

    def start(self, name: str, command: Sequence[str]) -> Peer:
        """Start a member without waiting until it has joined. Names must be unique."""
        assert name not in self._peers, name
        self._peers[name] = peer = Peer(name, command, self._take)
        peer.listen()
        return peer

    def __iter__(self) -> Iterator[Peer]:
        """All members that were started."""
        return iter(self._peers.values())

    def _take(self, name: str, event: Event) -> None:
        with self._news:
            self._peers[name].events.append(event)
            self.ledger.take(name, event)
            self._news.notify_all()

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, what: str, look: Callable[[], T], timeout: float = TIMEOUT) -> T:
        """Return the first true value of `look`, which is called after every event. Fail if there is none in time."""
        return wait_for_news(self._news, what, look, self.report, timeout)

    def wait_stable(self, members: Iterable[Peer], timeout: float = TIMEOUT) -> None:
        """Wait until exactly these members form the group and each partition has one owner."""
        names = [member.name for member in members]
        self.wait(f"a stable group of {names}", lambda: self.ledger.is_stable(names), timeout)

    def wait_flowing(self, timeout: float = TIMEOUT) -> None:
        """Wait until all owners have read and committed each partition that they own now."""
        self.wait(
            "all owners read", lambda: all(ownership.committed for ownership in self.ledger.open_ownerships()), timeout
        )

    def stop(self, *peers: Peer, timeout: float = TIMEOUT) -> None:
        """Stop members properly, all at once. Their consumers are closed and their processes gone when this returns."""
        for peer in peers:
            peer.terminate()
        for peer in peers:
            self.wait(f"{peer.name} ends", functools.partial(getattr, peer, "gone"), timeout)
            assert peer.closed, f"{peer.name} ended without closing its consumer\n{self.report()}"

    def report(self) -> str:
        """The state of all members, for failure messages."""
        lines = []
        for peer in self._peers.values():
            peer.ask_for_state()
            owned = sorted(partition for _, partition in self.ledger.owned(peer.name))
            lines.append(f"{peer.name}: {'gone' if peer.gone else 'there'}, owns {owned}, {len(peer.events)} events")
            lines += [f"    {event}" for event in peer.events[-6:]]
            lines += [f"    | {line}" for line in peer.said]
        return "\n".join(lines)

    # -- the end -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in self._peers.values():
            peer.end()
        self._scratch.cleanup()
