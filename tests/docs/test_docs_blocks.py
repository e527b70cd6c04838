"""Every Python block in README.md and docs/ runs with a real broker; every `headrace` command there is valid.

A block runs as written: only addresses are replaced, no setting is added or changed. A block that does not end by
itself is stopped after a few polls; tests that a block defines are called. Names that a block assumes (`consumer`,
`work`) are defined according to the text around it. `test_docs_spark.py` runs the blocks that need Spark; those of the
security page run with a broker that has users and certificates, and those of the tutorial in `test_docs_tutorial.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from headrace import AcknowledgeType, AsyncConsumer, Consumer, ShareConsumer
from headrace.cli.app import headrace as command_line
from headrace.cli.properties import parse_properties
from support.brokers.secured import SecuredBroker, TokenServer, unsigned_token

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECURITY = "security.md"
TUTORIAL = "tutorial.md"  # its blocks are programs that build on each other: test_docs_tutorial.py
NOTEBOOKS = "notebooks.md"  # its blocks are cells: test_docs_notebooks.py
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_NEEDS_SPARK = re.compile(r"\bspark\.|^\.option\(", re.MULTILINE)
_POLLS = 4
_RUN_FOR = 1.0


class Block(NamedTuple):
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def needs_spark(block: Block) -> bool:
    return _NEEDS_SPARK.search(block.text) is not None


def blocks(*kinds: str) -> Iterator[Block]:
    for page in PAGES:
        whole = page.read_text()
        for found in _BLOCK.finditer(whole):
            if found["kind"] in kinds:
                yield Block(page.name, whole[: found.start()].count("\n") + 2, found["text"])


class Enough(Exception):
    """Stops a block that does not end by itself."""


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the number of polls, and wake run() after a second."""

    def counted(kind: type, poll: Any) -> Any:
        left = {}

        def check(self: Any) -> None:
            left[id(self)] = left.get(id(self), _POLLS) - 1
            if left[id(self)] < 0:
                raise Enough

        if inspect.iscoroutinefunction(poll):

            async def limited(self: Any, timeout: float = 1.0, *limit: Any, **options: Any) -> Any:
                check(self)
                return await poll(self, min(timeout, 5.0), *limit, **options)
        else:

            def limited(self: Any, timeout: float = 1.0, *limit: Any, **options: Any) -> Any:
                check(self)
                return poll(self, min(timeout, 5.0), *limit, **options)

        return limited

    def woken(run: Any) -> Any:
        def limited(self: Any, *args: Any, **options: Any) -> Any:
            monkeypatch.setattr(type(self), _polled(type(self)), unbounded[type(self)])
            threading.Timer(_RUN_FOR, self.wakeup).start()
            return run(self, *args, **options)

        return limited

    unbounded = {kind: getattr(kind, _polled(kind)) for kind in (Consumer, AsyncConsumer, ShareConsumer)}
    for kind, poll in unbounded.items():
        monkeypatch.setattr(kind, _polled(kind), counted(kind, poll))
    for kind in (Consumer, ShareConsumer):
        monkeypatch.setattr(kind, "run", woken(kind.run))


def _polled(kind: type) -> str:
    """The method that both poll() and an iteration call."""
    return "_poll" if hasattr(kind, "_poll") else "poll"


class Running:
    """True for the first few checks."""

    def __init__(self) -> None:
        self.left = _POLLS

    def __bool__(self) -> bool:
        self.left -= 1
        return self.left >= 0


def taken_for_granted(block: Block, servers: str) -> dict[str, Any]:
    """The names that a block uses without defining them."""
    done: list[Any] = []
    names: dict[str, Any] = dict.fromkeys(("work", "handle", "send"), done.append)
    names |= {"charge": lambda key, value: done.append(value), "is_nonsense": lambda value: False}
    names |= {"AddressUnknown": KeyError, "AcknowledgeType": AcknowledgeType, "pool": ThreadPoolExecutor(2)}
    names |= {"config": {"bootstrap.servers": servers, "group.id": f"config-{block.line}"}, "running": Running()}
    defines = re.search(r"^\s*(async )?with .* as consumer|^\s*consumer = ", block.text, re.MULTILINE)
    if re.search(r"\bconsumer\.", block.text) and not defines:
        settings = {"bootstrap.servers": servers, "group.id": f"{block.page}-{block.line}"}
        if block.page == "share-groups.md":
            names["consumer"] = ShareConsumer(settings)
        else:
            names["consumer"] = Consumer({**settings, "auto.offset.reset": "earliest"})
        if "subscribe" not in block.text:
            names["consumer"].subscribe(["orders"])
    return names


def by_itself(block: Block) -> bool:
    """Whether a block needs only a broker."""
    return not needs_spark(block) and block.page not in (SECURITY, TUTORIAL, NOTEBOOKS)


@pytest.mark.parametrize("block", list(filter(by_itself, blocks("python"))), ids=str)
def test_a_documented_python_block_runs_as_written(
    block: Block,
    documented: str,
    bounded: None,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # a block changes it
    text = block.text.replace("localhost:9092", documented)
    names = taken_for_granted(block, documented)
    given = dict(names)
    code = compile("\n" * (block.line - 1) + text, block.page, "exec", dont_inherit=True)
    try:
        with contextlib.suppress(Enough):
            exec(code, names)
        for name, value in list(names.items()):
            if name.startswith("test_"):
                value(**{wanted: request.getfixturevalue(wanted) for wanted in inspect.signature(value).parameters})
    finally:
        given["pool"].shutdown()
        for value in names.values():
            if isinstance(value, (Consumer, ShareConsumer)):
                value.close()


@pytest.mark.parametrize("block", [it for it in blocks("python", "properties") if it.page == SECURITY], ids=str)
def test_a_documented_security_configuration_authenticates(
    block: Block, secured: SecuredBroker, token_server: TokenServer
) -> None:
    """The consumer of the block can log in. Only the addresses of broker, CA file and token endpoint are replaced."""
    config = secured.broker.config_of("billing")
    text = block.text.replace("broker1:9093", config["bootstrap.servers"])
    text = text.replace("/etc/kafka/ca.pem", config["ssl.ca.location"])
    text = text.replace("https://login.example/oauth2/token", token_server.url)
    token_server.CLIENT, token_server.SECRET = "billing", "…"
    names: dict[str, Any] = {"password": config["sasl.password"]}
    names["ask_the_vault"] = lambda: (unsigned_token("billing"), time.time() + 3600)
    if "bootstrap.servers=" in text:
        names["consumer"] = Consumer(parse_properties(text))
    else:
        exec(compile("\n" * (block.line - 1) + text, block.page, "exec", dont_inherit=True), names)
    with names["consumer"] as consumer:
        consumer.list_topics(timeout=60)


def commands() -> Iterator[tuple[str, list[str]]]:
    for block in blocks("sh", "console"):
        for line in block.text.splitlines():
            for part in line.removeprefix("$ ").split("#")[0].split("|"):
                words = shlex.split(part.split("<")[0])
                if words and words[0] == "headrace":
                    yield f"{block}: {' '.join(words)}", words[1:]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in commands()])
def test_a_documented_command_has_valid_options(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its options exist and accept their values. Other tests run the commands."""
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoints/orders", "pipelines/traffic", "shop" if "new" not in words else "x"):
        Path(name).mkdir(parents=True)
    Path("orders.txt").touch()
    context = command_line.make_context("headrace", list(words))
    rest = [*context._protected_args, *context.args]
    command: click.Command = command_line
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not rest or rest[0].startswith("-")):
            break
        found = command.get_command(context, rest[0])
        assert found is not None, rest
        command, rest = found, rest[1:]
    command.make_context(command.name, rest, parent=context).close()
