"""LocalBroker on full and read-only disks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.local import DownloadProgress, LocalBroker, LocalBrokerError
from support.members.subprocesses import brokers_below

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def mount() -> Iterator[Callable[[str], Path]]:
    """Mount an in-memory file system with the given options, if permitted. Not in `tmp_path`: after a killed test run
    it stays mounted, and later runs could not remove the directories of that run."""
    where = Path(tempfile.mkdtemp(prefix="headrace-disk-"))

    def make(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no permission to mount a file system")
        return where

    yield make
    if where.is_mount():
        subprocess.run(["umount", "-l", str(where)], check=True)
    where.rmdir()


class TestReadOnlyDisk:
    def test_an_error_names_the_data_directory_on_a_read_only_disk(self, mount: Callable[[str], Path]) -> None:
        disk = mount("ro")
        with pytest.raises(LocalBrokerError, match=f"the data directory {disk}/data is not writable"):
            LocalBroker(data_dir=disk / "data").start()

    def test_an_error_names_the_cache_directory_on_a_read_only_disk(
        self, mount: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = mount("ro")
        monkeypatch.setenv("HEADRACE_CACHE", str(disk))
        with pytest.raises(LocalBrokerError, match=f"the cache directory {disk} is not writable"):
            LocalBroker().start()


class TestFullDisk:
    def test_an_error_names_the_data_directory_on_a_full_disk(self, mount: Callable[[str], Path]) -> None:
        disk = mount("size=3m")
        (disk / "ballast").write_bytes(b"x" * (3 * 1024 * 1024 - 40 * 1024))
        with pytest.raises(LocalBrokerError, match="no space left on the disk that holds the data directory"):
            LocalBroker(data_dir=disk / "data").start()
        assert not brokers_below(disk)

    @pytest.mark.soak
    def test_an_error_names_the_cache_directory_on_a_full_disk(
        self, mount: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = mount("size=3m")
        monkeypatch.setenv("HEADRACE_CACHE", str(disk))
        said: list[DownloadProgress] = []
        with pytest.raises(LocalBrokerError, match="no space left on the disk that holds the cache directory"):
            LocalBroker(progress=said.append).start()
        assert [path.name for path in disk.iterdir()] == ["kafka-4.3.1.lock"]
