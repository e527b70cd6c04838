"""The Kafka protocol: its messages and their versions, and how they are encoded and decoded. No I/O."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from types import ModuleType


class _NoHypothesis:
    """A finder that hides the package hypothesis from imports of the thread that created it. Other imports and other
    threads are not affected. It has no base class: importlib.abc would import pathlib, tempfile and others."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] == "hypothesis" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("kio is loaded without hypothesis", name=fullname)
        return None


def _load_kio() -> None:
    """Import kio without hypothesis. If hypothesis is installed, kio imports it to register strategies for its types,
    which takes a third of the time of `from headrace import Consumer` and is of no use in a program. A test run that
    has already imported hypothesis does get the strategies."""
    if "hypothesis" in sys.modules:
        return
    finder = _NoHypothesis()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("kio.static._phantom")
    finally:
        sys.meta_path.remove(finder)


_load_kio()
