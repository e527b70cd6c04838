"""`--pin`: how cores are split, what perf prints, and what happens where neither is possible."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import contenders as who
from benchmarks import counters, pinning, process
from benchmarks.datasets import Dataset
from benchmarks.process import CommandFailed
from benchmarks.report import Results, results
from benchmarks.results import Measurement, Outcome, Table, summarize


def split(cpus: int, *, threads: int = 1) -> tuple[list[int], list[int]]:
    """The CPUs of broker and clients, on a machine with so many of them, `threads` of them on each physical core."""
    together = {cpu: frozenset(range(cpu // threads * threads, (cpu // threads + 1) * threads)) for cpu in range(cpus)}
    cores = pinning.split(range(cpus), together)
    return sorted(cores.broker), sorted(cores.clients)


@pytest.mark.parametrize(
    ("cpus", "broker"), [(2, [1]), (3, [2]), (4, [3]), (8, [6, 7]), (16, [12, 13, 14, 15]), (64, [60, 61, 62, 63])]
)
def test_the_broker_has_a_quarter_of_the_cores_but_at_most_four(cpus: int, broker: list[int]) -> None:
    assert split(cpus) == (broker, [cpu for cpu in range(cpus) if cpu not in broker])


def test_the_threads_of_a_physical_core_stay_on_one_side() -> None:
    assert split(4, threads=2) == ([2, 3], [0, 1])
    assert split(2, threads=2) == ([1], [0])


def test_only_the_cpus_of_this_process_are_split() -> None:
    together = {cpu: frozenset([cpu, cpu + 8]) for cpu in range(8)}
    assert pinning.split([2, 5], together) == pinning.Cores(frozenset([5]), frozenset([2]))


def test_one_cpu_cannot_be_split() -> None:
    with pytest.raises(pinning.CannotPin, match="needs two processors: there is 1"):
        split(1)


def test_the_kernels_lists_of_cpus_are_parsed() -> None:
    assert pinning.parse_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert pinning.listed({2, 0}) == "CPUs 0, 2"
    assert pinning.listed({1}) == "CPU 1"


def test_all_threads_of_a_process_are_pinned() -> None:
    one = {min(os.sched_getaffinity(0))}
    program = "import threading; [threading.Thread(target=input).start() for _ in '12']; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        pinning.pin(child.pid, one)
        threads = [int(task.name) for task in Path("/proc", str(child.pid), "task").iterdir()]
        cores = [os.sched_getaffinity(thread) for thread in threads]
        child.kill()
    assert len(cores) == 3
    assert all(each == one for each in cores)


def test_instructions_are_parsed() -> None:
    text = "# started on Tue Nov 17\n\n123456789,,instructions:u,98765,100.00,,\n"
    assert counters.parse(text) == 123_456_789
    assert counters.parse("1500,,instructions,98765,100.00,0.5,insn per cycle") == 1500


@pytest.mark.parametrize("count", ["<not supported>", "<not counted>"])
def test_a_missing_counter_is_a_reason(count: str) -> None:
    with pytest.raises(counters.NoCounters, match=f"perf says {count} for instructions:u"):
        counters.parse(f"{count},,instructions:u,0,100.00,,\n")
    with pytest.raises(counters.NoCounters, match="printed no instructions"):
        counters.parse("")


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for a `perf` of the test's own, which is first on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(process, "_counted", False)
    return tmp_path / "perf"


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


# The seventh argument is the file if the option -o is given; the command follows the two dashes.
_COUNTS = """
if [ "$6" = -o ]; then echo '5000,,instructions:u,1,100.00,,' > "$7"; shift 8; exec "$@"; fi
echo '5000,,instructions:u,1,100.00,,' >&2"""


def test_a_command_is_charged_with_its_instructions_where_perf_counts(perf: Path) -> None:
    _script(perf, _COUNTS)
    assert process.run([sys.executable, "-c", "print('done')"], timeout=60).instructions is None
    assert process.count_instructions() == ""
    finished = process.run([sys.executable, "-c", "print('done')"], timeout=60)
    assert (finished.output, finished.instructions) == ("done\n", 5000)


def test_without_counters_commands_run_without_perf(perf: Path) -> None:
    _script(perf, "echo '<not supported>,,instructions:u,0,100.00,,' >&2")
    assert process.count_instructions() == "perf says <not supported> for instructions:u"
    assert process.run([sys.executable, "-c", "print('done')"], timeout=60).instructions is None
    _script(perf, "echo 'Access to performance monitoring is limited' >&2; exit 255")
    assert process.count_instructions() == "perf is not allowed: Access to performance monitoring is limited"


def test_without_perf_instructions_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert process.count_instructions() == "perf is not installed"


def test_a_command_under_perf_ends_with_its_timeout(perf: Path, tmp_path: Path) -> None:
    # As the real one, it does not end its command when it is killed.
    _script(perf, f'echo "5000,,instructions:u,1,1,," >&2; [ "$6" = -o ] && sleep 60 & echo $! > {tmp_path}/pid; wait')
    assert process.count_instructions() == ""
    with pytest.raises(CommandFailed, match=r"5000|not done in 1 s"):
        process.run(["sleep", "60"], timeout=1)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)  # until the kernel has ended it
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _table(instructions: int | None) -> Table:
    measured = Measurement(1_000_000, 0.5, 0.5, 2.0, 10**8, instructions)
    return Table(Dataset(100, "none", 1_000_000), 0, {who.COLUMNAR.name: Outcome((measured,))})


def test_the_column_of_instructions_is_left_out_where_nothing_was_counted() -> None:
    counted = results(Results({}, 0.0, "", 1, [_table(250_000_000)], {}, {}))
    assert "| instructions / record |" in counted
    assert "|                   250 |" in counted
    assert "instructions" not in results(Results({}, 0.0, "", 1, [_table(None)], {}, {}))


def test_a_summary_has_the_median_instructions_of_a_record() -> None:
    summary = summarize([Measurement(10, 1.0, None, 1.0, 1, count) for count in (100, 300, 5000)])
    assert summary is not None
    assert summary.instructions_per_record == 30
