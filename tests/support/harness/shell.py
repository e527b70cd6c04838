"""The command line, called in this process: exit code, stdout and stderr."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from headrace.cli.app import run


@dataclass(frozen=True)
class Done:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The table as a list of rows, including its header."""
        return [line.split() for line in self.text.splitlines()]


def headrace(*args: str, stdin: bytes = b"") -> Done:
    streams = [io.TextIOWrapper(io.BytesIO(data), write_through=True) for data in (stdin, b"", b"")]
    taken, said, complained = streams
    taken.buffer.name = "<stdin>"  # type: ignore[attr-defined]
    with (
        mock.patch.object(sys, "argv", ["headrace", *args]),
        mock.patch.object(sys, "stdin", taken),
        mock.patch.object(sys, "stdout", said),
        mock.patch.object(sys, "stderr", complained),
    ):
        try:
            run()
        except SystemExit as end:
            code = end.code
    out, err = (stream.buffer.getvalue() for stream in (said, complained))  # type: ignore[attr-defined]
    return Done(code if isinstance(code, int) else int(code is not None), out, err.decode())
