"""A lock between processes. The kernel releases it when its last holder ends, even if it is killed."""

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
    """An exclusive `flock` on a file. The file is created if it does not exist, and never removed.

    `flock` belongs to the open file, not to the process: a child that inherits `fileno()` holds the lock after the
    parent has died. The guards of a cluster thereby lock the data directory until their broker has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, timeout: float, on_wait: Callable[[], None] | None = None) -> bool:
        """Acquire the lock. Returns False if another process still holds it after `timeout` seconds."""
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
        """Close the file. The lock is released when all processes have closed it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
