"""Costs by number of partitions: topics, exponents, the report; and the plan of records and rounds."""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from benchmarks import plan as plans
from benchmarks import run, scaling, scaling_report
from benchmarks.__main__ import _chosen_datasets, _command, _parser
from benchmarks.child import find
from benchmarks.plan import FULL, PARTS, QUICK, plan
from benchmarks.readers import Job
from benchmarks.report import Results, page
from benchmarks.results import Figures

SOMETHING = object()


def test_costs_that_are_proportional_have_the_exponent_one() -> None:
    assert scaling.exponent([(1, 3.0), (10, 30.0), (1000, 3000.0)]) == pytest.approx(1.0)
    assert scaling.exponent([(1, 7.0), (10, 7.0), (100, 7.0)]) == pytest.approx(0.0)
    assert scaling.exponent([(10, 5.0), (100, 500.0)]) == pytest.approx(2.0)


def test_there_is_no_exponent_of_less_than_two_costs() -> None:
    assert scaling.exponent([]) is None
    assert scaling.exponent([(10, 5.0)]) is None
    assert scaling.exponent([(10, 5.0), (100, 0.0)]) is None


def test_the_last_decade_shows_what_a_constant_hides() -> None:
    found = scaling.growth([(size, 100.0 + size) for size in scaling.PARTITIONS])
    assert found.overall is not None
    assert found.last_decade is not None
    assert found.overall < 0.6 < 0.9 < found.last_decade


@pytest.mark.parametrize(("partitions", "sizes"), [(1, [1]), (1000, [1000]), (2500, [1000, 1000, 500])])
def test_partitions_are_in_topics_of_at_most_a_thousand(partitions: int, sizes: list[int]) -> None:
    job = Job("", "scaling", partitions, 1)
    assert list(scaling.topics_of(job).values()) == sizes
    assert len(set(scaling.partitions_of(job))) == partitions


@pytest.mark.parametrize("name", ["create", "fill", *scaling.CLIENTS])
def test_every_step_of_scaling_has_its_function(name: str) -> None:
    assert list(inspect.signature(find(f"scaling.{name}")).parameters) == ["job"]


def test_the_report_has_a_row_for_each_client_and_figure_and_the_reason_of_a_failure() -> None:
    found: dict[str, Figures] = {
        "headrace": {"1": {"poll µs": 10.0, "MB": 2.0}, "10": {"MB": 20.0}},
        "confluent": {"1": {"poll µs": 100.0, "MB": 4.0}, "10": "failed: too slow"},
    }
    lines = scaling_report.section(found).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    rows = {name: figures for name, *figures in cells}
    assert rows["client"] == ["1", "10", "exponent", "of the last decade"]
    assert rows["headrace, memory, MB"] == ["2.00", "20.00", "1.00", "1.00"]
    assert rows["headrace, poll of 500 records, µs"] == ["10.00", "–", "–", "–"]
    assert rows["confluent, memory, MB"] == ["4.00", "–", "–", "–"]
    assert "headrace, idle, CPU %" not in rows
    assert "- confluent, 10 partitions: failed: too slow" in lines


def test_every_part_has_an_effort_and_quick_ones_are_never_larger() -> None:
    assert tuple(FULL) == tuple(QUICK) == PARTS
    for part in PARTS:
        assert QUICK[part].records <= FULL[part].records
        assert QUICK[part].repeat <= FULL[part].repeat
        assert set(QUICK[part].names) <= set(FULL[part].names)


def test_a_plan_has_the_given_numbers_and_otherwise_those_of_the_part() -> None:
    assert plan(["tls", "reading"]) == {"reading": FULL["reading"], "tls": FULL["tls"]}
    assert plan(["tls"], quick=True) == {"tls": QUICK["tls"]}
    found = plan(["writing"], records=5000, repeat=7, names=["1KB"], quick=True)["writing"]
    assert (found.repeat, [(each.name, each.records) for each in found.datasets]) == (7, [("1KB", 500)])


def test_the_page_names_its_command_and_how_long_it_took() -> None:
    options = _parser().parse_args(["--quick", "--pin", "--repeat", "2", "--datasets", "1kb"])
    assert _command(options) == "python -m benchmarks --quick --pin --repeat 2 --datasets 1kb"
    assert _chosen_datasets(options) == ["1KB"]
    text = page(Results({}, 0.0, _command(options), 2, [], {}, {}, durations={"reading": 90.0, "tls": 30.0}))
    assert "python -m benchmarks --quick --pin" in text
    assert "It took 2 minutes: reading 1.5, tls 0.5." in text


def test_parts_with_their_own_broker_are_on_the_page() -> None:
    rates = {"headrace columnar": [4e6], "Java": [2e6], "confluent-kafka": [], "headrace by record": []}
    found = Results({}, 0.0, "", 1, [], {}, {}, tls=rates, plan=plan(["tls"]))
    text = page(found)
    assert "## Over TLS\n\n4,000,000 records of 100 bytes" in text
    assert "2.00" in text
    assert plans.NAMES == ("100B", "100B-zstd", "1KB", "1KB-zstd")


def test_ages_of_records_are_on_the_page() -> None:
    found = {"headrace, 3 ms of work": {"mean": 2.0, "p50": 1.5, "p99": 4.0}, "confluent, 3 ms of work": "failed: late"}
    text = page(Results({}, 0.0, "", 1, [], {}, {}, arrivals=found))
    assert "| headrace, 3 ms of work  |         2.00 | 1.50 | 4.00 |" in text
    assert "| failed: late |" in text


def test_one_run_measures_every_part_and_says_how_long_each_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> object:
        return SOMETHING

    for module in (
        *(run.arrivals, run.groups, run.share_runs, run.spark, run.spark_formats, run.spark_writing, run.writing),
        *(run.tls, run.formats, run.scaling),
    ):
        monkeypatch.setattr(module, "measure", measured)
    for name in ("_table", "_poll_costs", "_latencies", "_write", "_check_room"):
        monkeypatch.setattr(run, name, measured)
    broker = SimpleNamespace(bootstrap_servers="127.0.0.1:9092")
    monkeypatch.setattr(run.pinning, "broker", lambda _: nullcontext(broker))
    found = run.benchmark(
        plan=plan(PARTS), contenders=[], writers=[], keep=None, command="", facts={"Cores": "broker on CPU 1"}
    )
    assert tuple(found.durations) == PARTS
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    assert fields.pop("tables") == [SOMETHING] * len(plans.NAMES)
    assert [name for name, value in fields.items() if value is SOMETHING] == [
        *("poll_costs", "latencies", "arrivals", "groups", "shares", "sparks", "writings", "spark_writings"),
        *("spark_formats", "tls", "formats", "scaling"),
    ]
    assert found.facts["Cores"] == "broker on CPU 1"
