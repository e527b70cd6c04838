"""Watches the page of a command that runs in the test's own thread, from the start to the end, in a browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.local.ports import free_ports
from support.harness.browser import Browser, chromium

_EVERY = 0.2


class PageWatcher:
    """`port` is for the command. `texts` are the different texts that the page has shown, `last` is its last one."""

    def __init__(self, picture: Path) -> None:
        (self.port,) = free_ports(1)
        self.texts: list[str] = []
        self.has_ended = False
        self.complaints: list[str] = []
        self._picture = picture
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def last(self) -> str:
        return self.texts[-1]

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """The command has ended: the page shows its last state."""
        self._over.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            if self._is_served():
                with chromium() as browser:
                    self._watch(browser)
        except BaseException as error:  # noqa: BLE001  # raised by finish()
            self._error = error

    def _is_served(self) -> bool:
        while not self._over.wait(_EVERY):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return True
        return False

    def _watch(self, browser: Browser) -> None:
        browser.resize(1280, 900)
        browser.open(f"http://127.0.0.1:{self.port}/activity")
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and not self.has_ended:
            self._look(browser)
            self.has_ended = browser.texts("#live") == ["Ended"]
            if self._over.wait(_EVERY):
                browser.wait("the page notices the end", "return document.getElementById('live').innerText === 'Ended'")
                self.has_ended = True
        self._look(browser)
        browser.screenshot(self._picture)
        # That the server is gone at the end is in the console, too.
        self.complaints = [it for it in browser.complaints() if "ERR_" not in it]

    def _look(self, browser: Browser) -> None:
        (text,) = browser.texts("main")
        if text not in self.texts[-1:]:
            self.texts.append(text)


@contextmanager
def watched_page(picture: Path) -> Iterator[PageWatcher]:
    watcher = PageWatcher(picture)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.finish()
