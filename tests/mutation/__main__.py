"""Which mistakes would the tests notice? `PYTHONPATH=tests python -m mutation --each 8 --seed 1`

Changes one place of a module at a time (`sites.py`), in a copy of the package, and runs the tests of its subject until
one fails. A mutation that survives names a line that no test needs. It may also be equivalent to the original, or be
noticed by other tests only: `--tests` chooses which ones run.

The copies and `survivors.txt` are in build/mutation. The tree itself is never changed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutation.sites import Mutation, mutations

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "headrace"
BUILD = ROOT / "build" / "mutation"
# The poll path: what is executed, besides the machines, between a fetch and the records of a poll.
POLL_PATH = ("_aio/poll_loop.py", "_aio/fetch", "_aio/call_guard.py", "_aio/poll_signal.py", "_aio/group/rebalance.py")
# Rooms of tests, or files in them, by the start of a path; the first match counts. Else: the room of the same name.
_ROOMS = {
    "_machines/positions": "positions fetch",
    "_machines/lanes": "lanes",
    "_machines/commit/committed_offset.py": "positions",
    "_machines/commit": "commit run lanes",
    "_machines/share": "share",
    "_machines/fetch": "fetch consumer",
    "_machines/error_pacing.py": "network fetch consumer share",
    "_machines/outage_warnings.py": "network consumer",
    "_machines/counted_warnings.py": "produce/test_counted_warnings.py",
    "_machines/missing_topics.py": "group/test_missing_topics.py",
    "_machines/api_versions_fallback.py": "network",
    "_machines/cluster.py": "network fetch positions group",
    "_machines/backoff.py": "network net group",
    "_aio/fetch": "fetch net lanes consumer",
    "_aio/group": "group consumer",
    "_aio": "consumer fetch net",
}


class Task(NamedTuple):
    path: str
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.path}:{self.mutation.line}: {self.mutation}"


def _tests_of(path: str) -> list[str]:
    rooms = next((rooms for start, rooms in _ROOMS.items() if path.startswith(start)), path.split("/")[1])
    return [f"tests/unit/{room}" for room in rooms.split()]


def _tasks(paths: list[str], each: int, seed: int) -> list[Task]:
    found = []
    for path in paths or ["_machines", *POLL_PATH]:
        whole = SOURCES / path
        for file in sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]:
            name = str(file.relative_to(SOURCES))
            known = mutations(file.read_text())
            dice = random.Random(f"{seed} {name}")
            picked = dice.sample(known, min(each, len(known))) if each else known
            found += [Task(name, mutation) for mutation in sorted(picked, key=lambda each: each.line)]
    return found


class Runner:
    """Runs tests against a copy of the package. One for each thread."""

    def __init__(self, number: int, tests: list[str], timeout: float) -> None:
        self._sources = BUILD / f"copy-{number}"
        self._tests = tests
        self._timeout = timeout
        shutil.rmtree(self._sources, ignore_errors=True)
        shutil.copytree(SOURCES, self._sources / "headrace", ignore=shutil.ignore_patterns("__pycache__"))

    def survives(self, task: Task) -> bool:
        file = self._sources / "headrace" / task.path
        original = (SOURCES / task.path).read_text()
        file.write_text(task.mutation.source())
        try:
            return self.passes(task.path)
        finally:
            file.write_text(original)

    def passes(self, path: str) -> bool:
        # Bytecode is valid for a time and a size, which two mutations within a second may share.
        environment = {**os.environ, "PYTHONPATH": str(self._sources), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60"]
        tests = self._tests or _tests_of(path)
        process = subprocess.Popen(
            [*command, *tests], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(self._timeout) == 0
        except subprocess.TimeoutExpired:
            return False  # an endless loop is noticed, too
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or directories of src/headrace (machines, poll path)")
    parser.add_argument("--each", type=int, default=8, help="mutations of each file, at random (8); 0: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=[], help="for all files, instead of tests/unit/<subject>")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the tests of a mutation (300)")
    chosen = parser.parse_args()
    tasks = _tasks(chosen.paths, chosen.each, chosen.seed)
    workers = [Runner(number, chosen.tests, chosen.timeout) for number in range(chosen.workers)]
    broken = [path for path in sorted({task.path for task in tasks}) if not _is_green(workers[0], path)]
    if broken:
        print(f"these tests fail without a mutation, so they would show nothing: {', '.join(broken)}")
        return 2
    began, survivors = time.monotonic(), []
    with ThreadPoolExecutor(len(workers)) as pool:

        def run(task: Task) -> bool:
            runner = workers.pop()
            try:
                return runner.survives(task)
            finally:
                workers.append(runner)

        for number, (task, survived) in enumerate(zip(tasks, pool.map(run, tasks), strict=True), start=1):
            if survived:
                survivors.append(task)
                print(f"[{number}/{len(tasks)}, {time.monotonic() - began:.0f} s] survived: {task}", flush=True)
    (BUILD / "survivors.txt").write_text("".join(f"{task}\n" for task in survivors))
    print(f"{len(tasks)} mutations, {len(survivors)} survived")
    return 0


_green: dict[tuple[str, ...], bool] = {}


def _is_green(runner: Runner, path: str) -> bool:
    tests = tuple(_tests_of(path))
    if tests not in _green:
        _green[tests] = runner.passes(path)
    return _green[tests]


if __name__ == "__main__":
    sys.exit(main())
