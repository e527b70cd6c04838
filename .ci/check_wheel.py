"""Checks the wheel and the sdist in dist/, as a user gets them, and runs the README's first steps with the wheel.

    python .ci/check_wheel.py

The wheel is installed into an empty environment, in which the PATH has no compiler: first alone, then with the extra
that the quick start names. The commands and the Python code of the quick start run as written, except for the broker's
port. Packages have the versions of .ci/constraints.txt.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
# A part of what has to be in the sdist.
_IN_SDIST = (
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "rust/Cargo.toml",
    "rust/headrace-py/src/lib.rs",
    "src/headrace/py.typed",
)
_WITHIN = 900.0
_RECORDS = 3  # that the Python code of the README sends and prints, before it waits for more


class Environment:
    """An empty virtual environment, with Java and nothing else of this machine on its PATH."""

    def __init__(self, place: Path) -> None:
        self._bin = place / "env" / "bin"
        venv.create(place / "env", with_pip=True)
        tools = place / "tools"
        tools.mkdir()
        if java := shutil.which("java"):
            (tools / "java").symlink_to(java)
        self._variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CARGO", "RUST"))},
            "PATH": f"{self._bin}:{tools}",
            "HEADRACE_DATA": str(place / "data"),
        }
        self._place = place
        for tool in ("cargo", "rustc", "cc", "gcc"):
            assert shutil.which(tool, path=self._variables["PATH"]) is None

    def install(self, wheel: Path, extra: str = "") -> None:
        self.run("pip", "install", "-q", "--disable-pip-version-check", "-c", str(ROOT / ".ci" / "constraints.txt"),
                 f"headrace{extra} @ {wheel.as_uri()}")  # fmt: skip

    def run(self, command: str, *arguments: str, code: int = 0) -> str:
        print("$", command, *arguments, flush=True)
        done = subprocess.run(
            [self._bin / command, *arguments],
            cwd=self._place,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WITHIN,
            check=False,
        )
        print(done.stdout, end="", flush=True)
        if done.returncode != code:
            sys.exit(f"{command} exited with code {done.returncode} instead of {code}")
        return done.stdout

    def run_until_lines(self, count: int, command: str, *arguments: str) -> None:
        """Press Ctrl-C when the command has printed so many lines."""
        print("$", command, *arguments, flush=True)
        with subprocess.Popen(
            [self._bin / command, *arguments],
            cwd=self._place,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            stop = threading.Timer(_WITHIN, process.kill)
            stop.start()
            assert process.stdout is not None
            lines = list(itertools.islice(process.stdout, count))
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            process.wait(_WITHIN)
            stop.cancel()
        print(*lines, rest, sep="", flush=True)
        assert len(lines) == count, f"{command} ended after {len(lines)} lines"


def quick_start() -> Iterator[tuple[str, str]]:
    """The blocks of the README's sections Install and Python: the language, and the text."""
    page = (ROOT / "README.md").read_text()
    for name in ("Install", "Python"):
        section = re.search(rf"^## {name}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
        assert section is not None, name
        for block in re.finditer(r"^```(\w+)\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE):
            yield block[1], block[2]


def check_contents(wheel: Path, sdist: Path) -> None:
    name = f"headrace-{version()}"
    assert re.fullmatch(rf"{re.escape(name)}-cp311-abi3-\w+\.whl", wheel.name), wheel.name
    assert sdist.name == f"{name}.tar.gz", sdist.name
    inside = set(zipfile.ZipFile(wheel).namelist())
    sources = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    needed = {"headrace/_native.abi3.so", *(str(path.relative_to(ROOT / "src")) for path in sources)}
    assert needed <= inside, sorted(needed - inside)
    sboms = [file for file in inside if re.fullmatch(rf"{re.escape(name)}\.dist-info/sboms/.+\.cyclonedx\.json", file)]
    assert len(sboms) == 1, sboms
    components = json.loads(zipfile.ZipFile(wheel).read(sboms[0]))["components"]
    assert {"pyo3", "zstd", "arrow-array"} <= {component["name"] for component in components}
    with tarfile.open(sdist) as archive:
        files = {file.removeprefix(f"{name}/") for file in archive.getnames()}
    assert files.issuperset(_IN_SDIST), sorted(set(_IN_SDIST) - files)
    assert not {file for file in files if file.endswith(".so") or file.startswith((".venv", "rust/target"))}
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, {len(components)} crates in its SBOM")
    print(f"{sdist.name}: {sdist.stat().st_size / 2**20:.1f} MiB, {len(files)} files")


def version() -> str:
    found = re.search(r'^version = "([^"]+)"', (ROOT / "rust" / "Cargo.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def check_core(here: Environment) -> None:
    """With nothing but the core: the client works, and `doctor` says what the rest needs."""
    here.run("python", "-c", "from headrace import Consumer, Producer, ShareConsumer; import headrace.records")
    assert "\nNothing is broken.\n" in here.run("python", "-m", "headrace", "doctor")
    assert "pip install 'headrace[cli]'" in here.run("headrace", "doctor", "cli", code=1)
    assert "pip install 'headrace[cli]'" in here.run("headrace", "up", code=1)


def run_quick_start(here: Environment, wheel: Path) -> None:
    address = ""
    ran = []
    try:
        for language, text in quick_start():
            if language == "python":
                here.run_until_lines(_RECORDS, "python", "-u", "-c", text.replace("localhost:9092", address))
                ran.append(language)
                continue
            for line in text.splitlines():
                command = line.split("#")[0].split()
                if command[:2] == ["pip", "install"]:
                    here.install(wheel, command[2].strip("'").removeprefix("headrace"))
                elif command == ["headrace", "up"]:
                    here.run(*command, "--port", "0")
                    address = json.loads(here.run("headrace", "status", "--format", "json"))["bootstrap_servers"]
                elif command:
                    here.run(*command)
                ran.append(" ".join(command[:2]))
        assert {"pip install", "headrace up", "python"} <= set(ran), ran
        here.run("headrace", "doctor", "local")
    finally:
        if address:
            here.run("headrace", "down")


def main() -> None:
    wheel, sdist = (next(iter(DIST.glob(f"headrace-{version()}{ending}"))) for ending in ("-*.whl", ".tar.gz"))
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as place:
        here = Environment(Path(place))
        here.install(wheel)
        check_core(here)
        run_quick_start(here, wheel)
    print(f"The quick start works with {wheel.name}.")


if __name__ == "__main__":
    main()
