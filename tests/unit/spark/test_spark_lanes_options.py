"""Group options of streaming queries: accepted and rejected combinations."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.spark.options.group import GroupOptions, LaneOptions, has_lane_column, reject_in_batch
from headrace.spark.options.source import OptionError, SourceOptions

BASE = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}


def options(**given: Any) -> GroupOptions:
    values = BASE | {name.replace("__", "."): str(value) for name, value in given.items()}
    if "assign" in values:
        del values["subscribe"]
    return GroupOptions.parse(values, SourceOptions.parse(values, streaming=True))


def test_group_options_are_off_unless_given() -> None:
    found = options(kafka__group__id="g")
    assert found.is_off
    assert found == GroupOptions()


def test_names_of_group_options_are_case_insensitive() -> None:
    found = options(COMMITOFFSETS="TRUE", kafka__group__id="g", Enable__Parallel__Rebalance="True", includelane="true")
    assert found.commits
    assert found.lanes == LaneOptions(1, 0.25)
    assert found.include_lane
    assert not found.is_off


def test_options_of_lanes_are_read() -> None:
    own = {"parallel__rebalance__min__lag": 500, "parallel__rebalance__backlog__share": 0.5}
    assert options(enable__parallel__rebalance="true", **own).lanes == LaneOptions(500, 0.5)


def test_settings_of_a_member_are_taken_from_the_options() -> None:
    given = {"kafka__group__id": "g", "kafka__session__timeout__ms": "7000", "kafka__client__id": "secretive"}
    found = options(group__membership="true", commitOffsets="true", **given)
    assert found.is_member
    assert not found.commits, "a member always commits itself"
    assert found.settings["group.id"] == "g"
    assert found.settings["session.timeout.ms"] == "7000"
    assert "secretive" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    assert "session.timeout.ms" not in options(commitOffsets="true", **given).settings


def test_options_of_a_share_group_are_read() -> None:
    found = options(share__group__id="s", kafka__group__id="other", kafka__max__poll__interval__ms="1000")
    assert found.share_group == "s"
    assert found.settings["group.id"] == "s"
    assert found.settings["max.poll.interval.ms"] == "1000"
    assert options(share__group__id="s").settings["max.poll.interval.ms"] == "3600000", "triggers may be minutes apart"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"commitOffsets": "true"}, "commitOffsets=true needs the option kafka.group.id"),
        ({"commitOffsets": "yes", "kafka.group.id": "g"}, "commitOffsets='yes' must be true or false"),
        ({"group.membership": "true"}, "group.membership=true needs the option kafka.group.id"),
        ({"group.membership": "true", "commitOffsets": "false", "kafka.group.id": "g"}, "a member always commits"),
        ({"group.membership": "true", "kafka.group.id": "g", "kafka.session.timeout.ms": "x"}, "session.timeout.ms"),
        ({"group.membership": "true", "kafka.group.id": "g", "assign": '{"t":[0]}'}, "the group assigns partitions"),
        ({"parallel.rebalance.min.lag": "5"}, "needs enable.parallel.rebalance=true"),
        ({"enable.parallel.rebalance": "true", "parallel.rebalance.backlog.share": "1"}, "below 1"),
        ({"enable.parallel.rebalance": "true", "parallel.rebalance.min.lag": "0"}, "min.lag"),
        ({"watermarkDelay": "5 seconds"}, "watermarkDelay needs enable.parallel.rebalance=true"),
        ({"enable.parallel.rebalance": "true", "watermarkDelay": "5"}, "Use a form such as '10 minutes'"),
        ({"enable.parallel.rebalance": "true", "watermarkDelay": "soon"}, "Use a form such as '10 minutes'"),
        ({"share.group.id": "s", "watermarkDelay": "5 seconds"}, "cannot be combined"),
        ({"share.group.id": ""}, "share.group.id is empty"),
        ({"share.group.id": "s", "group.membership": "true"}, "cannot be combined"),
        ({"share.group.id": "s", "enable.parallel.rebalance": "true"}, "cannot be combined"),
        ({"share.group.id": "s", "includeLane": "true"}, "cannot be combined"),
        ({"share.group.id": "s", "commitOffsets": "true"}, "cannot be combined"),
        ({"share.group.id": "s", "startingOffsets": "earliest"}, "share.auto.offset.reset"),
        ({"share.group.id": "s", "minPartitions": "4"}, "minPartitions and share.group.id cannot be combined"),
        ({"share.group.id": "s", "assign": '{"t":[0]}'}, "needs the option subscribe"),
        ({"commitOffset": "true", "kafka.group.id": "g"}, "did you mean commitOffsets"),
        ({"enable.paralel.rebalance": "true"}, "did you mean enable.parallel.rebalance"),
    ],
)
def test_wrong_group_options_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options(**given)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("5 seconds", 5000),
        ("1 second", 1000),
        ("10 minutes", 600_000),
        ("90s", 90_000),
        ("20ms", 20),
        (" 1 HOUR ", 3600_000),
    ],
)
def test_the_delay_of_a_watermark_is_read(text: str, milliseconds: int) -> None:
    found = options(**{"watermarkDelay": text, "enable.parallel.rebalance": "true"})
    assert found.watermark_delay_ms == milliseconds


def test_group_options_are_refused_in_batch_queries() -> None:
    reject_in_batch({"commitOffsets": "false", "subscribe": "t"})
    with pytest.raises(OptionError, match="is only for streaming queries"):
        reject_in_batch({"Share.Group.Id": "s"})


def test_include_lane_adds_a_column() -> None:
    assert has_lane_column({"INCLUDELANE": "true"})
    assert not has_lane_column({"includeLane": "false"})
