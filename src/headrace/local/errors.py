"""The error of the local broker."""

from __future__ import annotations

import errno
from pathlib import Path

from ..errors import HeadraceError


class LocalBrokerError(HeadraceError):
    """An operation on the local broker failed. The message says why, and what to do."""


def storage_error(error: OSError, path: Path, what: str) -> LocalBrokerError:
    """The error for a failed write below `path`, with advice."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full_disk(path, what)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LocalBrokerError(f"{what} {path} is not writable ({error.strerror}): choose another directory")
    return LocalBrokerError(f"{what} {path} cannot be used: {error}")


def full_disk(path: Path, what: str) -> LocalBrokerError:
    return LocalBrokerError(
        f"no space left on the disk that holds {what} {path}: free some, or choose another directory"
    )
