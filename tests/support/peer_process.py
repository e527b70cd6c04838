"""Members of a group as child processes, with one ledger for all that they say.

A `Peer` is started, and then stopped in order (SIGTERM), killed, paused or resumed. Reading threads put its events into
the ledger; `Peers.wait` waits for whatever one wants to see there. None of them outlives the `with` block, nor this
process, however it ends.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from headrace.local.process import GuardedProcess

from .group_events import Closed, Ended, Event, Place, milliseconds, parse
from .group_ledger import Ledger

T = TypeVar("T")

_TESTS = Path(__file__).parent.parent
_TIMEOUT = 30.0
_REMEMBERED_LINES = 40


class Peer:
    """One member. Made by `Peers.start`."""

    def __init__(self, name: str, command: Sequence[str], take: Callable[[str, Event], None]) -> None:
        self.name = name
        self.events: list[Event] = []
        self.said: deque[str] = deque(maxlen=_REMEMBERED_LINES)
        """The last lines that were no events."""
        self._take = take
        self._output, theirs = os.pipe()
        try:
            # In the directory of the tests, where `-m support...` finds its module.
            self.process = GuardedProcess(command, output=theirs, cwd=_TESTS)
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, name=f"peer {name}", daemon=True)

    def listen(self) -> None:
        """From now on its events are taken."""
        self._reader.start()

    def _read(self) -> None:
        try:
            with os.fdopen(self._output, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    # Who is killed may leave half a line.
                    event = parse(line) if line.endswith("\n") else None
                    if event is None:
                        self.said.append(line.rstrip())
                    else:
                        self._take(self.name, event)
        finally:
            self._take(self.name, Ended(milliseconds()))

    def terminate(self) -> None:
        """Asks it to close its consumer and end; does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def closed(self) -> bool:
        """It has closed its consumer in order."""
        return any(isinstance(event, Closed) for event in self.events)

    @property
    def gone(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Ended)

    def end(self) -> None:
        """Whatever it is doing: it is gone when this returns."""
        self.process.close()
        self._reader.join()


class Peers:
    """The members of one group, past and present.

    :param partitions: those of the topics that the group reads.
    """

    def __init__(self, partitions: Iterable[Place]) -> None:
        self.ledger = Ledger(partitions)
        self._peers: dict[str, Peer] = {}
        self._news = threading.Condition()
        self._scratch = tempfile.TemporaryDirectory(prefix="peers-")

    @property
    def directory(self) -> Path:
        """For files that members need."""
        return Path(self._scratch.name)

    def start(self, name: str, command: Sequence[str]) -> Peer:
        """Starts a member, without waiting until it is one. A name is used once."""
        assert name not in self._peers, name
        self._peers[name] = peer = Peer(name, command, self._take)
        peer.listen()
        return peer

    def __iter__(self) -> Iterator[Peer]:
        """All that were started."""
        return iter(self._peers.values())

    def _take(self, name: str, event: Event) -> None:
        with self._news:
            self._peers[name].events.append(event)
            self.ledger.take(name, event)
            self._news.notify_all()

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(self, what: str, look: Callable[[], T], timeout: float = _TIMEOUT) -> T:
        """The first true value of `look`, which is asked after every event. Fails when there is none in time."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not (found := look()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{what}: not within {timeout:g} s\n{self.report()}")
                self._news.wait(left)
        return found

    def wait_at_rest(self, members: Iterable[Peer], timeout: float = _TIMEOUT) -> None:
        """Until these are the group, and each partition has one owner."""
        names = [member.name for member in members]
        self.wait(f"at rest with {names}", lambda: self.ledger.at_rest(names), timeout)

    def wait_flowing(self, timeout: float = _TIMEOUT) -> None:
        """Until all owners have read from, and committed, each partition that they own now."""
        self.wait("all owners read", lambda: all(stint.committed for stint in self.ledger.open_stints()), timeout)

    def stop(self, *peers: Peer, timeout: float = _TIMEOUT) -> None:
        """In order, all at once: their consumers are closed and the processes gone when this returns."""
        for peer in peers:
            peer.terminate()
        for peer in peers:
            self.wait(f"{peer.name} ends", functools.partial(getattr, peer, "gone"), timeout)
            assert peer.closed, f"{peer.name} ended without closing its consumer\n{self.report()}"

    def report(self) -> str:
        """For whoever has to find out why a wait was in vain."""
        lines = []
        for peer in self._peers.values():
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
