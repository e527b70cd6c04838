"""Runs the core of the tests with other brokers, Pythons and versions of PySpark, and writes docs/compatibility.md.

    make compatibility                                       everything that this machine has
    python .ci/compatibility.py --kafka 3.9.2 4.0.2          some brokers, and nothing else
    python .ci/compatibility.py --python 3.12 --spark 4.1

Rows of versions that are not run stay as they are. A Python is an executable of that name on the PATH, or one of pyenv.
The native module is the one of `make setup`: it is built for the stable ABI, so it is the same for every Python.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
KAFKA = ("3.9.2", "4.0.2", "4.1.2", "4.2.1", "4.3.1")
PYTHON = ("3.11", "3.12", "3.13", "3.14")
SPARK = ("4.0", "4.1", "4.2", "4.3")
SECONDS = 1800  # for the tests of one version

INTEGRATION = tuple(
    f"tests/integration/{name}"
    for name in (
        "commit/test_commits.py",
        "consumer/test_polling.py",
        "fetch/test_reading.py",
        "fetch/test_transactions.py",
        "group/test_groups.py",
        "positions/test_offset_queries.py",
        "positions/test_positions.py",
        "produce/test_open_transactions.py",
        "produce/test_transactions.py",
        "produce/test_written_records.py",
        "run/test_exactly_once.py",
        "share/test_share_acknowledging.py",
        "share/test_share_polling.py",
    )
)
UNIT = tuple(
    f"tests/unit/{name}"
    for name in (
        "commit", "config", "consumer", "fetch", "formats", "group", "lanes", "net", "network", "observability",
        "positions", "produce", "protocol", "records", "run", "share",
    )
)  # fmt: skip
# What the tests of UNIT import.
PYTHON_TOOLS = (
    "confluent-kafka", "cramjam", "crc32c", "duckdb", "fastavro", "googleapis-common-protos", "hypothesis", "kio",
    "opentelemetry-api", "opentelemetry-sdk", "pandas", "polars", "prometheus-client", "protobuf", "psutil", "pyarrow",
    "pytest", "pytest-timeout", "pytest-xdist", "uvloop", "click", "rich", "zstandard", "cryptography",
)  # fmt: skip
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed)\b")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", nargs="*", metavar="VERSION", help=f"default: {' '.join(KAFKA)}")
    parser.add_argument("--python", nargs="*", metavar="VERSION", help=f"default: {' '.join(PYTHON)}")
    parser.add_argument("--spark", nargs="*", metavar="VERSION", help=f"default: {' '.join(SPARK)}")
    options = parser.parse_args()
    everything = options.kafka is None and options.python is None and options.spark is None
    failed = False
    for version in KAFKA if everything else options.kafka or ():
        failed |= _note("kafka", version, kafka(version))
    for version in PYTHON if everything else options.python or ():
        if (found := interpreter(version)) is None:
            print(f"Python {version} is not on this machine", flush=True)
            continue
        failed |= _note("python", version, python(version, found))
    for version in SPARK if everything else options.spark or ():
        failed |= _note("spark", version, spark(version))
    return int(failed)


# -- runs --------------------------------------------------------------------------------------------------------------


def kafka(version: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *INTEGRATION]
    return counts_of(run(f"Kafka {version}", command, KAFKA_VERSION=version))


def interpreter(version: str) -> str | None:
    """The executable of this version. A shim of pyenv may be one of a version that is not active."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for candidate in (*map(str, pyenv), shutil.which(f"python{version}")):
        if candidate is not None:
            asked = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False)
            if asked.stdout.startswith(f"Python {version}."):
                return candidate
    return None


def python(version: str, executable: str) -> str:
    """In an environment of its own, with the versions of development."""
    directory = ROOT / "build" / f"python-{version}"
    if not (directory / "bin" / "python").exists():
        subprocess.run([executable, "-m", "venv", str(directory)], check=True)
    pinned = [line for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines() if "==" in line]
    wanted = [line for line in pinned if re.split(r"[\[=]", line)[0] in PYTHON_TOOLS]
    own = str(directory / "bin" / "python")
    subprocess.run([own, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted], check=True)
    # Programs that tests start find the package without PYTHONPATH, which they may set themselves.
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "headrace.pth").write_text(f"{ROOT / 'src'}\n")
    # With Python 3.14, hypothesis warns about its own generator of random numbers.
    quiet = ["-W", "ignore:It looks like `register_random`:hypothesis.errors.HypothesisWarning"]
    return counts_of(run(f"Python {version}", [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *quiet, *UNIT]))


def spark(version: str) -> str:
    return counts_of(run(f"PySpark {version}", ["make", "-s", "test-spark", f"PYSPARK={version}"]))


def run(name: str, command: Iterable[str], **variables: str) -> str:
    """The last line of the tests, with their counts."""
    print(f"{name}:", flush=True)
    log = ROOT / "build" / "compatibility" / f"{name.replace(' ', '-').lower()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
        "PYTHONPATH": str(ROOT / "src"),
        **variables,
    }
    with log.open("w") as output:
        try:
            subprocess.run(
                list(command),
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"1 failed (not done within {SECONDS} s)"
    lines = [line for line in log.read_text(errors="replace").splitlines() if _COUNT.search(line)]
    print(f"  {lines[-1] if lines else 'no tests'}; see {log.relative_to(ROOT)}", flush=True)
    return lines[-1] if lines else ""


def counts_of(line: str) -> str:
    """`3 passed, 1 skipped`, in this order: passed, failed, skipped."""
    found: dict[str, int] = {}
    for count, what in _COUNT.findall(line):
        kind = "failed" if what.startswith("error") else what
        found[kind] = found.get(kind, 0) + int(count)
    return ", ".join(f"{found[kind]} {kind}" for kind in ("passed", "failed", "skipped", "xfailed") if kind in found)


# -- the page ----------------------------------------------------------------------------------------------------------


def _note(table: str, version: str, result: str) -> bool:
    """Writes a row. Returns whether tests have failed."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    PAGE.write_text(with_row(PAGE.read_text(), table, version, f"| {version} | {result or 'no tests'} | {today} |"))
    return "failed" in result or not result


def with_row(page: str, table: str, version: str, row: str) -> str:
    """The page with this row in place of the one of the same minor version, in the order of versions."""
    start, end = f"<!-- {table} -->\n", f"<!-- /{table} -->"
    before, _, rest = page.partition(start)
    rows, _, after = rest.partition(end)
    lines = rows.splitlines()
    head, body = lines[:2], lines[2:]
    minor = _minor(version)
    body = [line for line in body if line.strip() and _minor(line.split("|")[1].strip()) != minor] + [row]
    body.sort(key=lambda line: _minor(line.split("|")[1].strip()))
    return before + start + "\n".join([*head, *body]) + "\n" + end + after


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


if __name__ == "__main__":
    sys.exit(main())
