"""A guarded process never outlives its owner, and the guard does not touch anything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.local.errors import LocalBrokerError
from headrace.local.process import GuardedProcess
from support.harness.retries import patiently

SOURCE = Path(sys.modules["headrace"].__path__[0]).parent
SLEEP = ("sleep", "600")
# Sleeps until it is killed.
STUBBORN = (sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ignores(pid: int, number: signal.Signals) -> bool:
    mask = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(mask.split()[1], 16) & 1 << (number - 1))


def eventually(condition: Callable[[], bool], within: float = 60.0) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # polling, since another process gives no event
    return True


def owner(program: str) -> tuple[subprocess.Popen[str], int]:
    """A Python process that runs `program`, and the pid of its guarded process, which it prints."""
    prelude = f"""
        import os, sys, time
        sys.path.insert(0, {str(SOURCE)!r})
        from pathlib import Path
        from headrace.local.process import GuardedProcess
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(program)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def reap(process: subprocess.Popen[str]) -> None:
    process.wait(60)
    assert process.stdout is not None
    process.stdout.close()


def test_a_guarded_process_runs_in_a_session_of_its_own() -> None:
    process = GuardedProcess(SLEEP, output=subprocess.DEVNULL)
    try:
        assert process.is_alive()
        assert psutil.Process(process.pid).cmdline() == list(SLEEP)
        assert os.getsid(process.pid) != os.getsid(0)
    finally:
        assert process.close() == 128 + signal.SIGKILL
    assert not is_running(process.pid)


def test_a_guarded_process_has_an_exit_code_and_output(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = GuardedProcess(["sh", "-c", "echo said; echo warned >&2; exit 7"], output=out)
    assert process.wait(60)
    assert not process.is_alive()
    process.send_signal(signal.SIGTERM)  # harmless: the pid is not reused yet
    assert process.close() == 7
    assert process.close() == 7
    assert (tmp_path / "out").read_text() == "said\nwarned\n"


def test_a_signal_to_a_process_that_its_guard_has_just_reaped_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the guard and the signal, the pid can vanish."""
    process = GuardedProcess(SLEEP, output=subprocess.DEVNULL)

    def no_such_process(pid: int, number: int) -> None:
        raise ProcessLookupError

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", no_such_process)
        process.send_signal(signal.SIGTERM)
    process.close()


def test_the_reader_of_the_output_sees_its_end() -> None:
    read_end, write_end = os.pipe()
    process = GuardedProcess(["echo", "all"], output=write_end)
    os.close(write_end)
    with os.fdopen(read_end) as output:
        assert output.read() == "all\n"  # would block if the guard kept the pipe open
    assert process.wait(60)  # the pipe closes a moment before the process ends
    assert process.close() == 0


def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(LocalBrokerError, match=r"could not be started.*No such file"):
        GuardedProcess(["/does/not/exist"], output=subprocess.DEVNULL)


def test_closing_a_guarded_process_removes_no_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    process = GuardedProcess(SLEEP, output=subprocess.DEVNULL, remove=tmp_path / "data")
    process.close()
    assert (tmp_path / "data").exists()


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_guarded_process_has_started_ends_with_it(tmp_path: Path, ends: bool) -> None:
    left = tmp_path / "left"
    program = f"sleep 600 & echo $! > {left}.draft; mv {left}.draft {left}; {'exit 3' if ends else 'sleep 600'}"
    process = GuardedProcess(["bash", "-c", program], output=subprocess.DEVNULL)
    assert eventually(left.exists)
    pid = int(left.read_text())
    assert is_running(pid)
    process.close()
    assert eventually(lambda: not is_running(pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_guarded_process_dies_with_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").touch()
    parent, pid = owner(f"""
        p = GuardedProcess({SLEEP}, output=-3, remove=Path({str(data)!r}))
        import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)
        print(p.pid, flush=True)
        time.sleep(600)  # until it is killed
    """)
    assert is_running(pid)
    parent.send_signal(number)
    reap(parent)
    assert eventually(lambda: not is_running(pid))
    assert eventually(lambda: not data.exists())


def test_grace_is_for_those_who_go_and_the_rest_is_killed() -> None:
    def scenario(scale: float) -> None:
        parent, pid = owner(f"""
            p = GuardedProcess({STUBBORN}, output=-3, grace={0.5 * scale})
            print(p.pid, flush=True)
            time.sleep(600)  # until it is killed
        """)
        assert eventually(lambda: ignores(pid, signal.SIGTERM))
        parent.kill()
        reap(parent)
        assert is_running(pid)
        assert eventually(lambda: not is_running(pid))

    patiently(scenario)


BUSY_THREADS = [
    sys.executable,
    "-c",
    "import threading, time\n"
    "nap = lambda: [time.sleep(1e-5) for _ in range(3_000_000)]\n"
    "for _ in range(8): threading.Thread(target=nap, daemon=True).start()\n"
    "time.sleep(60)",
]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the states of threads")
def test_no_thread_runs_after_a_pause() -> None:
    def states() -> set[bytes]:
        stats = Path(f"/proc/{process.pid}/task").glob("*/stat")
        return {each.read_bytes().rpartition(b")")[2].split()[0] for each in stats}

    process = GuardedProcess(BUSY_THREADS, output=subprocess.DEVNULL)
    try:
        assert eventually(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 9)
        for _ in range(100):
            process.pause()
            assert states() == {b"T"}
            process.resume()
            assert eventually(lambda: states() != {b"T"})
    finally:
        process.close()


def test_a_stopped_process_ends_too() -> None:
    parent, pid = owner(f"""
        p = GuardedProcess({SLEEP}, output=-3, grace=20)
        print(p.pid, flush=True)
        time.sleep(600)  # until it is killed
    """)
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    reap(parent)
    assert eventually(lambda: not is_running(pid), within=15)


def test_a_forked_child_does_not_keep_a_guarded_process_alive() -> None:
    """A forked child inherits the pipe on whose end the guard waits."""
    parent, pid = owner(f"""
        p = GuardedProcess({SLEEP}, output=-3)
        if os.fork() == 0:
            time.sleep(20)  # outlives its parent
            os._exit(0)
        print(p.pid, flush=True)
        time.sleep(600)  # until it is killed
    """)
    parent.kill()
    reap(parent)
    assert eventually(lambda: not is_running(pid), within=15)


def test_a_forked_child_does_not_end_a_guarded_process() -> None:
    process = GuardedProcess(SLEEP, output=subprocess.DEVNULL)
    try:
        child = os.fork()
        if child == 0:
            process.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert process.is_alive()
    finally:
        process.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent's death")
def test_a_guarded_process_dies_with_its_guard() -> None:
    process = GuardedProcess(SLEEP, output=subprocess.DEVNULL)
    guard = psutil.Process(process.pid).ppid()
    os.kill(guard, signal.SIGKILL)
    assert eventually(lambda: not is_running(process.pid))
    process.close()
