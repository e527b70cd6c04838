"""The distribution of tests by `pytest -n WORKERS`: whole files, grouped by resources that are costly to start.

Each worker has a broker of its own (`kafka_broker`). A Spark session, a cluster of three brokers and a secured broker
are too costly to start for a file or two: the files whose tests use one of them run in the same worker. Only Spark has
three groups, because all its files together would take longer than everything else.

Long groups start first, and tests without a broker last: they fill the remaining time of the workers. A cluster and a
secured broker end with the group that used them: three idle brokers cost a fifth of a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

# The first match counts.
_GROUPS = {
    "spark sink": ("tests/spark/test_spark_sink", "tests/docs/test_docs_spark.py"),
    "spark groups": (
        "tests/spark/test_spark_committing",
        "tests/spark/test_spark_lanes",
        "tests/spark/test_spark_membership",
        "tests/spark/test_spark_shares",
        "tests/spark/test_spark_streaming",
    ),
    "spark": ("tests/spark/",),
    "cluster": (
        "tests/integration/admin/test_admin_outages.py",
        "tests/integration/chaos/",
        "tests/integration/fetch/test_failover.py",
        "tests/integration/fetch/test_replicas.py",
        "tests/integration/group/test_group_failover.py",
        "tests/integration/monitor/test_exporter_outages.py",
        "tests/integration/produce/test_producer_faults.py",
        "tests/integration/share/test_share_faults.py",
        "tests/integration/ui/test_ui_outages.py",
    ),
    "secured": (
        "tests/integration/security/",
        "tests/integration/consumer/test_event_loops.py",
        "tests/integration/monitor/test_exporter_rights.py",
        "tests/integration/produce/test_producer_errors.py",
        "tests/docs/test_docs_blocks.py",
    ),
}
# The order in which groups start, by the prefixes of their names. The named files take minutes.
_ORDER = (
    "spark",
    "tests/integration/local/test_local_broker.py",
    "tests/integration/lanes/test_lanes_crash_points.py",
    "cluster",
    "secured",
    "tests/docs/",
    "tests/integration/",
    "tests/cli/",
    "tests/unit/",
)
# Fixtures of the whole session that end with the group. A later group that uses one sets it up again.
_END_WITH_GROUP = ("cluster", "secured")
_started = pytest.StashKey[list[tuple[pytest.FixtureDef[Any], pytest.FixtureRequest]]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # a run of one process has no xdist

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(_group(item.nodeid)))


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    if fixturedef.argname in _END_WITH_GROUP and fixturedef.scope == "session":
        request.session.stash.setdefault(_started, []).append((fixturedef, request))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is not None and _group(nextitem.nodeid) != _group(item.nodeid):
        started = item.session.stash.get(_started, [])
        while started:
            fixture, request = started.pop()
            fixture.finish(request)  # type: ignore[arg-type]  # pytest's own request, which is always a SubRequest


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((name for name, starts in _GROUPS.items() if file.startswith(starts)), file)


def _rank(group: str) -> int:
    return next((rank for rank, start in enumerate(_ORDER) if group.startswith(start)), len(_ORDER))
