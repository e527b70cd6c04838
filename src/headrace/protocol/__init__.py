"""Kafka's messages: which there are, in which versions, and how they are read and written. No I/O."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from types import ModuleType


class _NoHypothesis(importlib.abc.MetaPathFinder):
    """Finds no hypothesis for the thread that made it; all other imports, and other threads, are left alone."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] == "hypothesis" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("kio is loaded without hypothesis", name=fullname)
        return None


def _load_kio() -> None:
    """kio imports hypothesis where it is installed, to register strategies for its types. That takes a third of the
    time that `from headrace import Consumer` takes, and has no use in a program. A test run that has loaded hypothesis
    before gets the strategies."""
    if "hypothesis" in sys.modules:
        return
    finder = _NoHypothesis()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("kio.static._phantom")
    finally:
        sys.meta_path.remove(finder)


_load_kio()
