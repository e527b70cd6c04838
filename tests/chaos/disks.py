"""Disks of brokers that can be filled: a small file system in memory for each, where mounting is permitted."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("chaos")

_SIZE = "400m"


class Disks:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """The data directory of the cluster."""

    def fill(self, broker: int) -> None:
        ballast = self._ballast(broker)
        with ballast.open("wb", buffering=0) as file:
            free = os.statvfs(ballast.parent)
            try:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
                file.seek(0, os.SEEK_END)
                while True:
                    file.write(bytes(4096))
            except OSError:  # it is full
                return

    def free(self, broker: int) -> None:
        self._ballast(broker).unlink()

    def _ballast(self, broker: int) -> Path:
        return disk_of(self.directory, broker) / "ballast"


def disk_of(directory: Path, broker: int) -> Path:
    """LocalBroker keeps everything of a broker there."""
    return directory / f"broker-{broker}"


@contextmanager
def small_disks(brokers: Iterable[int]) -> Iterator[Disks | None]:
    """None if file systems cannot be mounted."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    mounted: list[Path] = []
    try:
        for broker in brokers:
            disk = disk_of(directory, broker)
            disk.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(disk)]
            if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
                log.warning("no permission to mount a file system: no disk will be full")
                yield None
                return
            mounted.append(disk)
        yield Disks(directory)
    finally:
        for disk in mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        shutil.rmtree(directory, ignore_errors=True)
