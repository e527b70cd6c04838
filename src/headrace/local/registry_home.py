"""The installation of Apicurio Registry in the user's cache. It is downloaded once: see installation.py.

<cache>/apicurio-registry-3.0.9/*-runner.jar   the application, a Quarkus "legacy jar"
<cache>/apicurio-registry-3.0.9/lib/*.jar      its libraries, which the manifest of that jar names
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import LocalBrokerError
from .installation import install_once, installation_of
from .ivy import Coordinates, DownloadProgress, ProgressCallback, download
from .java import Java

REGISTRY_VERSION = "3.0.9"
PRODUCT = "Apicurio Registry"


@dataclass(frozen=True, slots=True)
class RegistryHome:
    """An installed Apicurio Registry."""

    path: Path

    @property
    def jar(self) -> Path:
        return self.path / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"


def install_registry(java: Java, progress: ProgressCallback) -> RegistryHome:
    """The installed registry, downloaded first if it is not in the cache. Raises `LocalBrokerError`."""

    def show(step: DownloadProgress) -> None:
        progress(replace(step, product=PRODUCT))

    def fill(path: Path, scratch: Path) -> None:
        archives = scratch / "archives"
        archives.mkdir()
        module = Coordinates("io.apicurio", "apicurio-registry-app", REGISTRY_VERSION, "all.tar.gz")
        download([module], (), archives, scratch, java, show, PRODUCT)
        show(DownloadProgress("preparing", 0))
        for archive in archives.iterdir():
            _unpack(archive, path)
        if not RegistryHome(path).jar.is_file():
            raise LocalBrokerError(
                f"{PRODUCT} {REGISTRY_VERSION} cannot be installed: its archive has no {home.jar.name}"
            )

    home = RegistryHome(installation_of(f"apicurio-registry-{REGISTRY_VERSION}"))
    install_once(home.path, PRODUCT, fill, show)
    return home


def _unpack(archive: Path, path: Path) -> None:
    try:
        with tarfile.open(archive) as files:
            files.extractall(path, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise LocalBrokerError(f"{PRODUCT} {REGISTRY_VERSION} cannot be installed: {archive.name}: {error}") from error
