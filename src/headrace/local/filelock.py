"""A lock between processes, released by the kernel when its last holder is gone, however it went."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError as error:  # Windows
    from .errors import LocalBrokerError

    raise LocalBrokerError("the local broker needs Linux or macOS (on Windows: WSL)") from error

_RETRY_EVERY = 0.05


class FileLock:
    """An exclusive `flock` on a file that is made when missing and never removed.

    `flock` belongs to the open file, not to the process: a child that inherits `fileno()` keeps the lock
    alive after the parent died. The guards of a cluster use that to hold the data directory until their
    broker is gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, timeout: float, on_wait: Callable[[], None] | None = None) -> bool:
        """True when the lock is ours, False when somebody else still has it after `timeout` seconds."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + timeout
        waited = False
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                        raise
                else:
                    self._fd, fd = fd, -1
                    return True
                if time.monotonic() >= deadline:
                    return False
                if on_wait is not None and not waited:
                    on_wait()
                    waited = True
                time.sleep(_RETRY_EVERY)
        finally:
            if fd >= 0:
                os.close(fd)

    def fileno(self) -> int:
        if self._fd is None:
            raise ValueError("the lock is not held")
        return self._fd

    def release(self) -> None:
        """Close the file. The lock ends with the last process that has it open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
