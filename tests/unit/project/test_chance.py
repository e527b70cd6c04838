"""Clients do not use the global generator of Python's module `random`."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

from headrace._chance import chance

SOURCE = Path(__file__).parents[3] / "src" / "headrace"
OWN_GENERATORS = {"_chance.py", "local/ports.py"}


def test_only_one_module_imports_random() -> None:
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"^\s*(import|from) random\b", path.read_text(), re.MULTILINE)
    }
    assert found == OWN_GENERATORS


def test_a_seed_of_the_program_does_not_make_clients_alike() -> None:
    random.seed(7)
    first = chance.random()
    random.seed(7)
    expected = random.random()
    random.seed(7)
    assert chance.random() != first
    assert random.random() == expected, "a client's number was not taken from the program's"


def test_a_forked_process_draws_other_numbers() -> None:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, repr(chance.random()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert float(pipe.read()) != chance.random()
