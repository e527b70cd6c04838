"""Runs a command, and ends it when the owner (the process that started the guard) ends. Run as a script, never
imported.

    guard.py STATUS_FD GRACE REMOVE COMMAND...

Only the owner has the write end of the guard's stdin, so the kernel closes it when the owner dies, even by SIGKILL.
The guard then ends the command and its process group (a JVM of Spark would otherwise continue to start for many
seconds), deletes the directory REMOVE (unless it is "") and exits with the exit code of the command. An owner that
no longer needs the command first writes a byte: then nothing is deleted.

The command is a child of the guard, which does not reap it before that. Until then, the operating system does not reuse
its pid, so the owner can send it signals without checking that it is alive. The guard writes the pid to STATUS_FD. The
command inherits STATUS_FD: when the command ends for any reason, the owner reads end of file.

The guard runs in its own session: a Ctrl-C in the terminal reaches neither the guard nor the command.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType

REST_ENDS_WITHIN = 5.0


def main(status: int, grace: float, remove: str, command: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(status,), process_group=0, preexec_fn=_die_with_the_guard
        )
    except OSError as error:
        os.write(status, f"error {error}\n".encode())
        return 127
    orphaned = True
    try:
        os.write(status, f"pid {child.pid}\n".encode())
        os.close(status)
        # Close the guard's copies of the output, so that its reader sees end of file when the command ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        while os.read(0, 4096):
            orphaned = False
    except BrokenPipeError:
        pass  # the owner died before it read the pid
    finally:
        code = end(child, grace)
        end_rest(child.pid)
        if remove and orphaned:
            shutil.rmtree(remove, ignore_errors=True)
    return code if code >= 0 else 128 - code


def end(child: "subprocess.Popen[bytes]", grace: float) -> int:
    """Send SIGTERM, and SIGKILL after `grace` seconds. A stopped process handles SIGTERM only after SIGCONT."""
    if grace > 0:
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        try:
            return child.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    child.kill()
    return child.wait()


def end_rest(group: int) -> None:
    """End the other processes of the child's group: send SIGTERM, and SIGKILL after some seconds."""
    try:
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + REST_ENDS_WITHIN
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass  # no process is left


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _die_with_the_guard() -> None:
    """On Linux, the command ends even if the guard itself is killed with SIGKILL."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
