"""Runs one command and ends it when whoever asked for it is gone. Started as a script, never imported.

    guard.py STATUS_FD GRACE REMOVE COMMAND...

The asker holds the write end of our stdin and nothing else does, so the kernel closes it when the asker dies,
be it by SIGKILL. Then we end the command and what it has started (its process group: a JVM of Spark's would go on
starting for many seconds), remove the directory REMOVE (if one is named) and exit with the command's code. An asker
that is done with the command writes a byte first: then nothing is removed.

The command is our child and is not reaped before that. Until then its pid cannot be given to another process,
so the asker may send it signals without asking whether it still lives. The command inherits STATUS_FD, on
which its pid was written: when it ends, however it ends, the asker reads end of file there.

It runs in a session of its own: a Ctrl-C in the terminal reaches neither the guard nor the command.
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
        # The output is the command's alone: its reader shall see the end of it when the command ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        while os.read(0, 4096):
            orphaned = False
    except BrokenPipeError:
        pass  # the asker died before it could read the pid
    finally:
        code = end(child, grace)
        end_rest(child.pid)
        if remove and orphaned:
            shutil.rmtree(remove, ignore_errors=True)
    return code if code >= 0 else 128 - code


def end(child: "subprocess.Popen[bytes]", grace: float) -> int:
    """SIGTERM, `grace` seconds, SIGKILL. A stopped process takes SIGTERM only once it continues."""
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
    """What the child has left behind: SIGTERM, some seconds, SIGKILL."""
    try:
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + REST_ENDS_WITHIN
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass  # nobody is left


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _die_with_the_guard() -> None:
    """On Linux even SIGKILL on the guard itself leaves nothing behind."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
