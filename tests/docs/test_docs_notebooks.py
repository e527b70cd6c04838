"""The cells of docs/notebooks.md run in a real kernel, again and interrupted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from docs.test_docs_blocks import ROOT

pytestmark = pytest.mark.timeout(400)

_PAGE = (ROOT / "docs" / "notebooks.md").read_text()
CREATE, POLL, COLLECT, ITERATE, RUN, AWAIT = re.findall(r"^```python\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE)
SOON = 20.0  # seconds on a busy machine; well below the 45 and 300 seconds that groups wait for members
TOTAL = 60


class Notebook:
    """A kernel."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.client = NotebookClient(nbformat.v4.new_notebook(), timeout=120, kernel_name="python3", allow_errors=True)
        self._count = 0

    def run(self, cell: str) -> Any:
        """Its result as text, or the name of its error."""
        node = nbformat.v4.new_code_cell(cell.replace("localhost:9092", self._servers))
        self.client.nb.cells.append(node)
        self._count += 1
        done = self.client.execute_cell(node, self._count - 1)
        for output in done["outputs"]:
            if output["output_type"] == "error":
                return output["ename"]
        found = [each["data"]["text/plain"] for each in done["outputs"] if each["output_type"] == "execute_result"]
        return found[0] if found else None

    def wait_for_partitions(self) -> float:
        """Seconds until the consumer has all partitions."""
        began = time.monotonic()
        self.run("while len(consumer.assignment()) < 3: consumer.poll(0.1)")
        return time.monotonic() - began


@pytest.fixture
def notebook(documented: str) -> Iterator[Notebook]:
    notebook = Notebook(documented)
    with notebook.client.setup_kernel():
        yield notebook
        notebook.run("consumer.close()")


def test_the_cells_of_the_page_run_in_order(notebook: Notebook) -> None:
    assert notebook.run(CREATE) is None
    assert 0 < int(notebook.run(POLL)) <= 500
    assert int(notebook.run(COLLECT)) == TOTAL
    assert notebook.run(RUN) == str(TOTAL)
    assert int(notebook.run(AWAIT)) > 0


def test_a_cell_that_is_run_again_has_its_partitions_soon(notebook: Notebook) -> None:
    """With the lines that close the consumer of the last time, and without."""
    for cell in (CREATE, CREATE, CREATE[CREATE.index("consumer = ") :]):
        assert notebook.run(cell) is None
        assert notebook.wait_for_partitions() < SOON


def test_an_interrupted_iteration_continues_when_its_cell_is_run_again(notebook: Notebook) -> None:
    notebook.run(CREATE.replace('"notebook"', '"notebook-interrupted"'))
    notebook.run(f"""
import os, signal, threading
seen = []
def handle(record):
    seen.append((record.partition, record.offset))
    if len(seen) in (20, {TOTAL}):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
""")
    assert notebook.run(ITERATE.replace("handle(record)", "handle(record); import time; time.sleep(0.02)")) == (
        "KeyboardInterrupt"
    )
    assert notebook.run(ITERATE) == "KeyboardInterrupt"
    assert notebook.run("len(seen), len(set(seen))") == f"({TOTAL}, {TOTAL})"


def test_a_cell_that_is_run_again_after_an_interrupt_has_its_partitions_soon(notebook: Notebook) -> None:
    """The traceback keeps the consumer of the last time alive, so the cell closes it."""
    cell = CREATE.replace('"notebook"', '"notebook-again"')
    notebook.run(cell)
    notebook.wait_for_partitions()
    notebook.run("import os, signal, threading")
    stop = "threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()\nwhile True: consumer.poll(1.0)"
    assert notebook.run(stop) == "KeyboardInterrupt"
    notebook.run(cell)
    assert notebook.wait_for_partitions() < SOON
