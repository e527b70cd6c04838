"""Options of format("headrace"): Spark's defaults, precedence and errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from headrace.spark.options.offset_limits import EARLIEST, LATEST, EarliestOrLatest, SpecificOffsets, SpecificTimestamps
from headrace.spark.options.source import AssignStrategy, OptionError, SourceOptions, SubscribeStrategy
from headrace.types import TopicPartition

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def options(streaming: bool = True, without: str = "", **given: str) -> SourceOptions:
    given = {name.replace("__", "."): value for name, value in given.items()}
    return SourceOptions.parse({k: v for k, v in {**LEAST, **given}.items() if k != without}, streaming=streaming)


def test_options_have_spark_s_defaults() -> None:
    found = options()
    assert found.strategy == SubscribeStrategy(("t",))
    assert found.starting == EarliestOrLatest(LATEST)
    assert options(streaming=False).starting == EarliestOrLatest(EARLIEST)
    assert found.fail_on_data_loss
    assert (found.retry_attempts, found.retry_interval, found.poll_timeout, found.max_trigger_delay) == (
        3,
        0.01,
        120.0,
        900.0,
    )


def test_names_of_options_are_case_insensitive() -> None:
    found = SourceOptions.parse(
        {"KAFKA.bootstrap.servers": "h:1", "Subscribe": " a , b,a", "STARTINGOFFSETS": "Earliest"}, streaming=True
    )
    assert found.strategy == SubscribeStrategy(("a", "b"))
    assert found.starting == EarliestOrLatest(EARLIEST)


def test_starting_options_have_spark_s_precedence() -> None:
    offsets, times = '{"t":{"0":23,"1":-2}}', '{"t":{"0":5}}'
    assert options(startingOffsets=offsets).starting == SpecificOffsets({T0: 23, T1: EARLIEST})
    by_time = options(startingOffsets=offsets, startingOffsetsByTimestamp=times)
    assert by_time.starting == SpecificTimestamps(None, {T0: 5})
    once = options(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp="7")
    assert once.starting == SpecificTimestamps(7, {})


def test_assign_names_topics_with_partitions() -> None:
    found = options(without="subscribe", assign='{"t":[0,1]}')
    assert found.strategy == AssignStrategy(frozenset({T0, T1}))


@pytest.mark.parametrize(
    ("streaming", "given", "says"),
    [
        (True, {"without": "kafka.bootstrap.servers"}, "kafka.bootstrap.servers is missing"),
        (True, {"without": "subscribe"}, "Set one of these options"),
        (True, {"assign": "{}"}, "Only one of these"),
        (True, {"subscribe": " , "}, "names no topic"),
        (
            True,
            {"without": "subscribe", "assign": "t"},
            r'assign=.* is not valid JSON .*. Use the form {"topic":\[0,1\]}',
        ),
        (
            True,
            {"without": "subscribe", "assign": "[0]"},
            r'not a JSON object by topic. Use the form {"topic":\[0,1\]}',
        ),
        (True, {"without": "subscribe", "assign": '{"t":[-1]}'}, "assign of t: -1 is below the minimum, 0"),
        (True, {"without": "subscribe", "assign": '{"t":0}'}, "a list of partitions for each topic"),
        (True, {"without": "subscribe", "subscribePattern": "("}, "not a regular expression"),
        (True, {"startingOffsets": "now"}, "is not valid JSON"),
        (True, {"startingOffsets": "[1]"}, "JSON object by topic"),
        (True, {"startingOffsetsByTimestamp": "{"}, '"0":1700000000000'),
        (True, {"startingOffsets": '{"t":{"0":-2,"3":-7}}'}, "startingOffsets of t-3: -7 is below the minimum, -2"),
        (True, {"endingOffsets": "latest"}, "cannot be set in a streaming query"),
        (True, {"endingTimestamp": "1"}, "cannot be set in a streaming query"),
        (True, {"startingTimestamp": "-1"}, "startingTimestamp: -1 is below the minimum, 0"),
        (
            True,
            {"startingOffsetsByTimestamp": '{"t":{"1":-5}}'},
            "startingOffsetsByTimestamp of t-1: -5 is below the minimum, 0",
        ),
        (True, {"startingOffsets": '{"t":{"x":5}}'}, "startingOffsets: partition of t: 'x' is not an integer"),
        (True, {"failOnDataLoss": "maybe"}, "true or false"),
        (True, {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: 0 is below the minimum, 1"),
        (True, {"FAILONDATALOSS": "Maybe"}, "failOnDataLoss='Maybe'"),
        (True, {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "is greater than"),
        (True, {"maxTriggerDelay": "soon"}, "is not a duration"),
        (True, {"maxOffsetsPerTriggerShares": "unfair"}, "fair or proportional"),
        (True, {"minPartitions": "x"}, "not an integer"),
        (True, {"maxOffsetsPerTrigger": "abc"}, "maxOffsetsPerTrigger: 'abc' is not an integer"),
        *(
            (True, {name: text}, rf"{name.replace('__', '.')}: .* is not an integer")
            for name in ("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "fetchOffset__numRetries")
            for text in (" 4 ", "4_000", "\u0664", "4.0", "")
        ),
        (True, {"maxOffsetsPerTrigger": "9" * 5000}, "999… is above the maximum"),
        (True, {"kafka__enable.parallel.rebalance": "true"}, "an option of the source, use enable.parallel.rebalance"),
        (True, {"kafka__parallel.rebalance.min.lag": "5"}, "use parallel.rebalance.min.lag"),
        (True, {"kafka__commitOffsets": "true"}, "use commitOffsets"),
        (False, {"kafka__group.membership": "true"}, "use group.membership"),
        (False, {"maxOffsetsPerTrigger": "x", "minOffsetsPerTrigger": "6"}, "maxOffsetsPerTrigger: 'x'"),
        (True, {"startingOffset": "earliest"}, "did you mean startingOffsets"),
        (True, {"kafka__bootstrap_server": "x"}, "did you mean kafka.bootstrap.servers"),
        (True, {"bootstrap__servers": "x"}, "use kafka.bootstrap.servers"),
        (True, {"without": "kafka.bootstrap.servers", "bootstrap__servers": "x"}, "use kafka.bootstrap.servers"),
        (True, {"sasl__password": "x"}, "use kafka.sasl.password"),
        (True, {"kafka__auto.offset.reset": "latest"}, "use startingOffsets"),
        (True, {"kafka__enable.auto.commit": "true"}, "checkpoint"),
        (True, {"kafka__fetch.max.bytes": "much"}, "fetch.max.bytes"),
        (False, {"startingOffsets": "latest"}, "would read nothing"),
        (False, {"endingOffsets": "earliest"}, "would read nothing"),
        (False, {"startingOffsets": '{"t":{"0":-1}}'}, "would read nothing"),
        (False, {"endingOffsets": '{"t":{"0":-2}}'}, "would read nothing"),
        (True, {"startingOffsets": '{"t":{"0":1.9}}'}, "1.9 is not an integer"),
        (True, {"startingOffsets": '{"t":{"0":true}}'}, "True is not an integer"),
        (True, {"startingOffsets": '{"t":{"0":Infinity}}'}, "inf is not an integer"),
        (False, {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":8}}'}, "9, which is after"),
        (
            False,
            {"startingOffsetsByTimestamp": '{"t":{"0":9}}', "endingOffsetsByTimestamp": '{"t":{"0":8}}'},
            "startingOffsetsByTimestamp of t-0 is 9, which is after",
        ),
    ],
)
def test_wrong_options_are_refused(streaming: bool, given: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options(streaming=streaming, **given)


def test_what_means_nothing_here_is_accepted() -> None:
    found = options(**{"kafka__some.java.setting": "1", "wholly.other": "2", "groupIdPrefix": "p"})
    assert "some.java.setting" not in found.settings


def test_starts_and_ends_that_are_in_order() -> None:
    same = '{"t":{"0":9,"1":9}}'
    options(streaming=False, startingOffsets=same, endingOffsets='{"t":{"0":9,"1":-1}}')
    options(streaming=False, startingOffsetsByTimestamp=same, endingOffsetsByTimestamp=same)
    options(streaming=False, startingTimestamp="9", endingTimestamp="8")  # Spark reads nothing in this case


def test_a_batch_query_ignores_limits_of_micro_batches_whatever_they_are() -> None:
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        assert options(streaming=False, **{name: "abc"}).max_offsets is None


def test_numbers_are_those_of_java() -> None:
    found = options(minPartitions="+4", startingTimestamp=" 5 ")
    assert (found.min_partitions, found.starting) == (4, SpecificTimestamps(5, {}))


def test_a_number_alone_is_milliseconds() -> None:
    assert options(maxTriggerDelay="1500").max_trigger_delay == 1.5
    assert options(fetchOffset__retryIntervalMs="0").retry_interval == 0


def test_a_space_may_be_part_of_a_password() -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    given = {f"kafka__{name}": value for name, value in login.items()}
    assert options(**given, kafka__sasl__password=" p ").settings["sasl.password"] == " p "


def test_options_can_be_pickled_and_show_no_settings() -> None:
    found = options(kafka__client__id="secretive")
    assert pickle.loads(pickle.dumps(found)) == found
    assert "secretive" not in repr(found)


def test_how_other_clients_name_a_login_is_understood_or_refused() -> None:
    given = {"kafka__security__protocol": "SASL_PLAINTEXT", "kafka__sasl__mechanisms": "PLAIN"}
    found = options(**given, kafka__sasl__username="u", kafka__sasl__password="p")
    assert found.settings["sasl.mechanisms"] == "PLAIN"
    with pytest.raises(
        OptionError, match=r"kafka\.sasl\.login\.class is not supported: headrace cannot run Java classes"
    ):
        options(kafka__sasl__login__class="org.example.Login")
