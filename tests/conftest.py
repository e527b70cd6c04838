"""Settings of the whole test run. Fixtures are in `support/brokers/fixtures.py` and `support/harness/fixtures.py`."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = (
    "support.brokers.fixtures",
    "support.brokers.secured",
    "support.harness.fixtures",
    "support.harness.login_renewals",
    "support.harness.parallel",
    "support.harness.threads",
    "support.spark.fixtures",
)

# A script's shell starts background commands with SIGINT ignored, and nohup ignores SIGHUP. Children inherit that, so
# tests that send these signals would fail.
_HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
for _number, _handler in _HANDLERS.items():
    signal.signal(_number, _handler)

# Property tests use the same examples each time, without a deadline, so that they depend neither on load nor on luck.
# Their long forms use random examples.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=not os.environ.get("SOAK"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")


@pytest.fixture(autouse=True)
def usual_signal_handlers() -> None:
    """Restore signal handlers. A Spark session and a query's reader on the driver set handlers that stay, and run()
    does not replace handlers of the program."""
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("SOAK"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make soak, or SOAK=1"))


def pytest_collection_finish() -> None:
    """The collected tests and their modules stay until the end: the garbage collector does not have to visit them."""
    gc.collect()
    gc.freeze()
