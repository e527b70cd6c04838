"""The download: the arguments of Ivy, its failures, and incomplete installations."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace.local import installation, ivy, registry_home
from headrace.local.errors import LocalBrokerError, storage_error
from headrace.local.filelock import FileLock
from headrace.local.ivy import Coordinates, DownloadProgress
from headrace.local.java import Java
from headrace.local.kafka_home import KafkaHome, install

KAFKA = Coordinates("org.apache.kafka", "kafka_2.13", "4.3.1")
NO_JAVA = Java("/does/not/exist/java", "17", "none")


def silent(_progress: DownloadProgress) -> None:
    pass


def make_home(path: Path) -> KafkaHome:
    (path / "jars").mkdir(parents=True)
    (path / "jars" / "a.jar").write_bytes(b"abc")
    (path / "manifest.json").write_text(json.dumps({"layout": 1, "files": {"jars/a.jar": 3}}))
    return KafkaHome("4.3.1", path)


def test_a_complete_installation_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs neither Java nor network nor write access: the cache may be read-only."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    make_home(tmp_path / "kafka-4.3.1")
    before = sorted(tmp_path.rglob("*"))
    assert install("4.3.1", NO_JAVA, silent).path == tmp_path / "kafka-4.3.1"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda home: (home / "manifest.json").unlink(),
        lambda home: (home / "manifest.json").write_text("{"),
        lambda home: (home / "manifest.json").write_text('{"layout": 0, "files": {}}'),
        lambda home: (home / "jars" / "a.jar").unlink(),
        lambda home: (home / "jars" / "a.jar").write_bytes(b"ab"),
    ],
    ids=["no manifest", "torn manifest", "other layout", "jar missing", "jar cut off"],
)
def test_a_damaged_installation_is_not_complete(tmp_path: Path, damage: object) -> None:
    home = make_home(tmp_path / "home")
    assert home.is_complete()
    damage(home.path)  # type: ignore[operator]
    assert not home.is_complete()


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(LocalBrokerError, match="could not be started"):
        install("4.3.1", NO_JAVA, silent)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["kafka-4.3.1.lock"]


def test_what_a_crash_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    (tmp_path / ".kafka-4.3.1-abc" / "home").mkdir(parents=True)
    with pytest.raises(LocalBrokerError):
        install("4.3.1", NO_JAVA, silent)
    assert not list(tmp_path.glob(".kafka*"))


def test_a_cache_directory_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LocalBrokerError, match=r"the cache directory .* cannot be used"):
        install("4.3.1", NO_JAVA, silent)


def test_waiting_for_another_download_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(installation, "_DOWNLOAD_WITHIN", 0.2)
    said: list[DownloadProgress] = []
    with FileLock(tmp_path / "kafka-4.3.1.lock") as lock:
        assert lock.acquire(0)
        with pytest.raises(LocalBrokerError, match="another process has been downloading"):
            install("4.3.1", NO_JAVA, said.append)
    assert said == [DownloadProgress("waiting for another process", 0)]


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivy, "find_spec", lambda _name: None)
    with pytest.raises(LocalBrokerError, match=re.escape("pip install 'headrace[local]'")):
        ivy.ivy_jar()


def test_ivy_is_found_without_importing_pyspark() -> None:
    code = "import sys; from headrace.local.ivy import ivy_jar; print(ivy_jar());assert 'pyspark' not in sys.modules"
    source = str(Path(sys.modules["headrace"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_file()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Host somewhere not found. url=x\n:: UNRESOLVED DEPENDENCIES", "cannot be reached .Host somewhere"),
        ("Server access error at url x (java.net.ConnectException: Connection refused)", "cannot be reached"),
        ("java.io.IOException: No space left on device", "no space left on the disk"),
        (":: UNRESOLVED DEPENDENCIES ::", "has no org.apache.kafka:kafka_2.13:4.3.1: check the version"),
        ("something else", r"failed \(Ivy exited with code 1\):\nsomething else"),
    ],
)
def test_what_a_failure_of_ivy_means(said: str, expected: str) -> None:
    assert re.search(expected, str(ivy._failure(said, 1, Path("/cache"), KAFKA)))


def test_progress_is_read_from_what_ivy_says() -> None:
    output = io.BytesIO(
        b"\tfound a#b;1 in central\n\tfound a#c;1 in central\ndownloading x ...\n.....\n... (3kB)\n"
        b"\t[SUCCESSFUL ] a#b;1!b.jar (12ms)\n\t[SUCCESSFUL ] a#c;1!c.jar (12ms)\n"
    )
    said: list[DownloadProgress] = []
    ivy._follow(output, said.append)
    assert said == [
        DownloadProgress("resolving", 1),
        DownloadProgress("resolving", 2),
        DownloadProgress("downloading", 1, 2),
        DownloadProgress("downloading", 2, 2),
    ]


def test_an_archive_is_requested_without_dependencies() -> None:
    module = ivy._module([KAFKA, Coordinates("io.apicurio", "app", "3.0.9", "all.tar.gz")], ())
    root = ElementTree.fromstring(module)
    jars, archive = root.iter("dependency")
    assert list(jars) == []
    assert archive.get("transitive") == "false"
    (artifact,) = archive
    assert artifact.attrib == {
        "name": "app",
        "type": "tar.gz",
        "ext": "tar.gz",
        "{http://ant.apache.org/ivy/maven}classifier": "all",
    }


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_a_damaged_archive_of_the_registry_is_not_installed(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))

    def download(_modules: object, _without: object, into: Path, *_: object) -> None:
        (into / "app.tar.gz").write_bytes(content)

    monkeypatch.setattr(registry_home, "download", download)
    said: list[DownloadProgress] = []
    with pytest.raises(LocalBrokerError, match=r"Apicurio Registry 3\.0\.9 cannot be installed"):
        registry_home.install_registry(NO_JAVA, said.append)
    assert [path.name for path in tmp_path.iterdir()] == ["apicurio-registry-3.0.9.lock"]
    assert {progress.product for progress in said} == {"Apicurio Registry"}


def test_proxies_of_the_environment_reach_java() -> None:
    assert ivy.proxy_flags({}) == []
    assert ivy.proxy_flags({"https": "http://proxy:3128", "no": "localhost, .corp"}) == [
        "-Dhttps.proxyHost=proxy",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp",
    ]
    assert ivy.proxy_flags({"http": "proxy"}) == ["-Dhttp.proxyHost=proxy", "-Dhttp.proxyPort=80"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "no space left on the disk that holds the cache /x: free some"),
        (errno.EACCES, "the cache /x is not writable"),
        (errno.EROFS, "the cache /x is not writable"),
        (errno.EIO, "the cache /x cannot be used"),
    ],
)
def test_storage_errors_say_what_to_do(number: int, expected: str) -> None:
    error = OSError(number, os.strerror(number))
    assert expected in str(storage_error(error, Path("/x"), "the cache"))
