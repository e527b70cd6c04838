"""Debian's Chromium without a window, driven by Selenium. Everything that it might ask other machines is turned off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
_WITHIN = 30.0
PICTURES = Path(__file__).parents[3] / "build" / "ui"
"""Where tests keep screenshots."""


class Browser:
    """One window. Every wait has a deadline, and says what was waited for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, what: str, script: str, *arguments: object) -> Any:
        """The first true result of the script."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            return WebDriverWait(self.driver, _WITHIN, 0.1).until(lambda _: self.run(script, *arguments))
        except TimeoutException:
            text = self.run("return document.body.innerText")
            raise AssertionError(f"{what}: not within {_WITHIN:g} s. The page has:\n{text}") from None

    def wait_text(self, text: str, selector: str = "body") -> None:
        script = "return [...document.querySelectorAll(arguments[0])].some(it => it.innerText.includes(arguments[1]))"
        self.wait(f"{text!r} in {selector}", script, selector, text)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(it => it.innerText.trim())", selector
        )
        return found

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def resize(self, width: int, height: int) -> None:
        """The size of the page, also below the smallest window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, **features: str) -> None:
        """What the system prefers, such as `prefers_color_scheme="dark"`."""
        media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        assert self.driver.save_screenshot(str(path))

    def complaints(self) -> list[str]:
        """Errors in the console since the last call: of scripts, of the content security policy, of requests."""
        return [it["message"] for it in self.driver.get_log("browser") if it["level"] == "SEVERE"]


def has_browser() -> bool:
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where no browser is installed."""
    binary, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver_path is None:
        pytest.skip("no browser: install Debian's chromium and chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = binary
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(driver_path))
    try:
        driver.set_page_load_timeout(_WITHIN)
        yield Browser(driver)
    finally:
        driver.quit()
