"""A child process that cannot outlive this process: see `guard.py`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .errors import LocalBrokerError

_GUARD = Path(__file__).with_name("guard.py")
_GUARD_STARTS_WITHIN = 30.0
_PAUSES_WITHIN = 10.0


class GuardedProcess:
    """A command that a guard runs: it ends when this process ends, even if this process is killed with SIGKILL.

    In that case, the guard sends SIGTERM, and SIGKILL after `grace` seconds (0: SIGKILL immediately). It then deletes
    the directory `remove`. It keeps the open files `hold`, such as locks, open until then.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes] | int,
        cwd: Path | None = None,
        grace: float = 0.0,
        remove: Path | None = None,
        hold: Sequence[int] = (),
    ) -> None:
        if not sys.executable:
            raise LocalBrokerError("the local broker needs sys.executable, which is empty in this Python")
        self.command = tuple(command)
        self._status, theirs = os.pipe()
        try:
            # -I -S: the guard starts quickly, and independently of the environment and the current directory.
            guard = [sys.executable, "-I", "-S", str(_GUARD), str(theirs), str(grace), str(remove or "")]
            self._guard = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=cwd,
                pass_fds=(theirs, *hold),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._status)
            raise
        finally:
            os.close(theirs)
        _alive.add(self)
        try:
            self.pid = self._read_pid()
        except BaseException:
            self.close()
            raise

    def _read_pid(self) -> int:
        deadline = time.monotonic() + _GUARD_STARTS_WITHIN
        line = b""
        while not line.endswith(b"\n"):
            if not self._readable(deadline - time.monotonic()):
                raise LocalBrokerError(f"{self.command[0]} was not started within {_GUARD_STARTS_WITHIN:g} s")
            if not (byte := os.read(self._status, 1)):
                raise LocalBrokerError(f"{self.command[0]} could not be started")
            line += byte
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        if word != "pid":
            raise LocalBrokerError(f"{self.command[0]} could not be started: {rest}")
        return int(rest)

    def is_alive(self) -> bool:
        return not self.wait(0)

    def wait(self, timeout: float) -> bool:
        """True if the process has ended, False if it is still running after `timeout` seconds."""
        return self._status < 0 or self._readable(timeout)

    def _readable(self, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._status, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(max(0.0, timeout) * 1000))

    def send_signal(self, number: int) -> None:
        """Does nothing if the process has ended, also while its guard ends what it has left."""
        if self._status >= 0 and self._guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Send SIGSTOP. Returns when all threads have stopped (on systems without /proc, when the signal is sent).

        The kernel stops the other threads when the thread that got the signal runs. On a busy machine, that takes tens
        of milliseconds, in which a broker still answers requests.
        """
        self.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _PAUSES_WITHIN
        while time.monotonic() < deadline and self.is_alive() and not _has_stopped(self.pid):
            time.sleep(0.001)  # the kernel reports a stop to the parent only, which is the guard

    def resume(self) -> None:
        """Send SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def kill_group(self) -> None:
        """Send SIGKILL to the process and its children, such as a JVM, which would take seconds to end."""
        if self._status >= 0 and self._guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """Send SIGKILL to the process if it is still running. Returns its exit code (128 + n for signal n)."""
        if self._status >= 0:
            _alive.discard(self)
            if hasattr(self, "pid"):
                self.send_signal(signal.SIGKILL)
            assert self._guard.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(b"!")
                self._guard.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait()
            os.close(self._status)
            self._status = -1
        return self._guard.returncode

    def _forget(self) -> None:
        """Runs in the child after a fork: its copy of the pipe must not keep the parent's command alive."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.returncode = 0
        os.close(self._status)
        self._status = -1


def _has_stopped(pid: int) -> bool:
    """True as well if the process has ended, or if the system has no /proc."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            if stat.read_bytes().rpartition(b")")[2].split()[0] not in (b"T", b"t", b"Z", b"X"):
                return False
    return True


_alive: weakref.WeakSet[GuardedProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in list(_alive):
        process._forget()
    _alive.clear()


os.register_at_fork(after_in_child=_forget_all)
