"""What can go wrong with the local broker: one error, whose message says what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from ..errors import HeadraceError


class LocalBrokerError(HeadraceError):
    """The local broker cannot do what was asked. The message says why and what to do about it."""


def storage_error(error: OSError, path: Path, what: str) -> LocalBrokerError:
    """The error of a failed write below `path`, in the words of somebody who can act on it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full_disk(path, what)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LocalBrokerError(f"{what} {path} is not writable ({error.strerror}): choose another directory")
    return LocalBrokerError(f"{what} {path} cannot be used: {error}")


def full_disk(path: Path, what: str) -> LocalBrokerError:
    return LocalBrokerError(
        f"no space left on the disk that holds {what} {path}: free some, or choose another directory"
    )
