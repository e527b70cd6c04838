"""The scenarios of Spark's own suites for its Kafka source and sink, by Spark's names, for `kafka` and `headrace`.

    world        what a scenario works with: a session, one of the two formats, topics
    relation     KafkaRelationSuite: batch queries
    microbatch   KafkaMicroBatchSourceSuite, KafkaDontFailOnDataLossSuite: streaming queries
    starts       KafkaMicroBatchSourceSuite: where queries start, and that they resume
    options      wrong and equivalent options of all suites
    sink         KafkaSinkSuite
    differences  what headrace observes instead, on purpose

A scenario returns what it observes, as JSON can have it. `expected` is what Spark's suite asserts. Spark's own source
has to observe it, too: that is the proof that a scenario is what its name says. KafkaOffsetRangeCalculatorSuite needs
no session, and is in tests/unit/spark/test_spark_ranges.py.
"""

from __future__ import annotations

from . import microbatch, options, relation, sink, starts
from .world import Scenario

SCENARIOS: dict[str, Scenario] = {}
for _module in (relation, microbatch, starts, options, sink):
    for _each in _module.SUITE.scenarios:
        assert _each.name not in SCENARIOS, _each.name
        SCENARIOS[_each.name] = _each
