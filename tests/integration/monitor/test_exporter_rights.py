"""The exporter of a client that may not read everything."""

from __future__ import annotations

import pytest

from headrace import Consumer, TopicPartition
from support.brokers.admin import unique
from support.brokers.secured import SecuredBroker
from support.harness.exporters import exporting


def test_denied_groups_and_topics_do_not_hide_the_others(secured: SecuredBroker) -> None:
    seen, hidden = secured.create("seen", 20), secured.create("hidden", 20)
    run = unique("rights")
    allowed, denied = f"{run}-allowed", f"{run}-denied"
    for group in (allowed, denied):
        with Consumer(secured.admin_config, group_id=group, enable_auto_commit=False) as consumer:
            consumer.commit({TopicPartition(seen, 0): 5, TopicPartition(hidden, 0): 5})
    user = "billing"
    secured.allow(user, "broker", "kafka-cluster", "describe")  # to list groups
    secured.allow(user, "group", allowed, "describe")
    secured.allow(user, "topic", seen, "describe")
    try:
        with exporting(secured.broker.config_of(user), f"{run}.*") as exporter:
            # The topic that is denied is not even visible, and neither is the commit for it.
            assert exporter.values("kafka_consumergroup_lag") == {(allowed, seen, "0"): 15}
            assert exporter.values("kafka_topic_partitions") == {(seen,): 1}
            assert {group for group, _, _ in exporter.values("headrace_group_state")} == {allowed, denied}
            assert exporter.value("headrace_exporter_read_errors", kind="group") == 1
            # Records may not be read: there is no age, and no failure either.
            assert exporter.values("kafka_consumergroup_lag_seconds") == {}
            assert exporter.value("headrace_exporter_up") == 1
            exporter.wait_pass()
            assert exporter.value("headrace_exporter_failures_total") == 0
    finally:
        for kind, name in (("broker", "kafka-cluster"), ("group", allowed), ("topic", seen)):
            secured.disallow(user, kind, name)


@pytest.mark.parametrize("password", ["wrong"])
def test_a_rejected_login_is_final(secured: SecuredBroker, password: str) -> None:
    settings = {**secured.broker.config_of("stranger"), "sasl.password": password}
    with exporting(settings) as exporter:
        status = exporter.wait_pass()
        assert status.is_final
        assert "authentication" in str(status.error).lower()
        assert password not in str(status.error)
        assert exporter.value("headrace_exporter_up") == 0
