"""Import rules that import-linter cannot check, since it only knows Python modules."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace._protocol import _NoHypothesis

SOURCE = Path(__file__).parents[3] / "src" / "headrace"


def test_four_modules_mention_the_native_module():
    users = {path.name for path in SOURCE.rglob("*.py") if "_native" in path.read_text()}
    assert users == {"_kernel.py", "_record_batch.py", "records.py", "threaded.py"}


def test_importing_headrace_loads_neither_the_kernel_nor_asyncio():
    """Every Spark worker imports it, and so does every pytest run where it is installed."""
    code = "import sys, headrace, headrace.testing; print([m for m in sys.modules if m in %r])"
    heavy = ("asyncio", "headrace._native", "kio", "pyarrow", "pyspark")
    command = [sys.executable, "-c", code % (heavy,)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert loaded.strip() == "[]", loaded


def test_a_consumer_loads_neither_producers_nor_http_clients():
    """run() and logins at a token endpoint need them, and import them then."""
    code = (
        "import sys; from headrace import Consumer; Consumer(bootstrap_servers='localhost:1', group_id='g');"
        "print([m for m in sys.modules if m in %r])"
    )
    heavy = ("headrace._aio.produce", "headrace._aio.run.consumer_run", "http.client", "importlib.resources")
    command = [sys.executable, "-c", code % (heavy,)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert loaded.strip() == "[]", loaded


def test_importing_headrace_does_not_load_hypothesis():
    """kio imports hypothesis if it is installed, as here. That takes as long as all other imports of the consumer."""
    for first in (
        "from headrace import Consumer, ShareConsumer, AsyncConsumer, AsyncShareConsumer",
        "import headrace._machines.group.classic",
        "import headrace._protocol.codes",
        "import headrace.spark.source, headrace.cli.app",
        "import headrace.spark.sink.writers",
    ):
        code = f"import sys; {first}; print('hypothesis' in sys.modules); import hypothesis.strategies"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert loaded.stdout.strip() == "False", first


def test_a_program_that_has_loaded_hypothesis_keeps_it():
    code = (
        "import sys, hypothesis; from headrace import Consumer; from kio.static import _phantom;"
        "print(_phantom.hypothesis is hypothesis, [each for each in sys.meta_path if 'headrace' in repr(each)])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "True []"


def test_other_threads_find_hypothesis_while_kio_is_loaded():
    finder = _NoHypothesis()
    with pytest.raises(ModuleNotFoundError):
        finder.find_spec("hypothesis.strategies", None)
    assert finder.find_spec("kio.static._phantom", None) is None
    with ThreadPoolExecutor(1) as other:
        assert other.submit(finder.find_spec, "hypothesis", None).result(60) is None
