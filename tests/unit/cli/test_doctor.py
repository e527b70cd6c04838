"""`headrace doctor`: what it concludes from which facts, and one real run without click."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace
from headrace.cli.app import headrace as command_line
from headrace.cli.doctor_checks import Facts, Package, WorkerPython, diagnose, is_in_range, needed_packages
from headrace.cli.doctor_probes import spark_version
from headrace.cli.doctor_report import report, run_plain
from headrace.errors import ConfigError

KIO = Package("kio", ">=0.6.5,<0.7", "0.6.5", ("core",))
CLICK = Package("click", ">=8.1.8,<9", "8.5.1", ("cli", "local"))
PYSPARK = Package("pyspark", ">=4.2,<5", "4.3.0", ("local", "spark"))
WORKER = WorkerPython("PYSPARK_PYTHON", "/env/bin/python", "3.12.1", "1.2.3")
HEALTHY = Facts(
    headrace="1.2.3",
    python=(3, 12, 1),
    executable="/env/bin/python",
    platform="Linux x86_64",
    kernel_error=None,
    packages=(KIO, CLICK, PYSPARK),
    extras=("all", "cli", "local", "spark"),
    java="17.0.15, /usr/bin/java",
    worker=WORKER,
    cache="/home/me/.cache/headrace",
    cache_space=10**10,
    kafka="4.3.1",
    has_kafka=True,
    ports={9092: True},
)


def given(**changes: Any) -> Facts:
    return dataclasses.replace(HEALTHY, **changes)


def without(package: Package) -> tuple[Package, ...]:
    absent = dataclasses.replace(package, installed=None)
    return tuple(absent if each is package else each for each in HEALTHY.packages)


# Facts; the finding: state, subject, a part of its text, its fix; the exit codes for everything, for `cli`, for `local`
# and for `spark`.
CASES = {
    "all is well": (given(), ("ok", "Python", "3.12.1, /env/bin/python", ""), (0, 0, 0, 0)),
    "an old Python": (
        given(python=(3, 10, 2)),
        ("broken", "Python", "3.10.2", "install Python 3.11 or newer"),
        (1, 1, 1, 1),
    ),
    "a kernel that does not load": (
        given(kernel_error="ImportError: GLIBC_2.17 not found"),
        ("broken", "native kernel", "GLIBC_2.17", "/env/bin/python -m pip install --force-reinstall headrace"),
        (1, 1, 1, 1),
    ),
    "no kio": (
        given(packages=without(KIO)),
        ("broken", "headrace", "not installed: kio", "pip install headrace"),
        (1, 1, 1, 1),
    ),
    "a package of an extra is missing": (
        given(packages=without(CLICK)),
        ("missing", "[cli]", "not installed: click", "pip install 'headrace[cli]'"),
        (0, 1, 1, 0),
    ),
    "a package is too old": (
        given(packages=(KIO, dataclasses.replace(CLICK, installed="8.0.4"))),
        ("broken", "click", "8.0.4, but headrace needs >=8.1.8,<9", "pip install 'click>=8.1.8,<9'"),
        (1, 1, 1, 0),
    ),
    "no metadata": (given(packages=()), ("broken", "headrace", "no metadata", "pip install headrace"), (1, 1, 1, 1)),
    "PySpark without Java": (
        given(java=None, java_error="no Java found: install Java 17", install_java="brew install openjdk"),
        ("broken", "Java", "install Java 17", "brew install openjdk"),
        (1, 0, 1, 1),
    ),
    "neither PySpark nor Java": (
        given(java=None, java_error="no Java found: install Java 17", packages=without(PYSPARK), worker=None),
        ("missing", "Java", "install Java 17", ""),
        (0, 0, 1, 1),
    ),
    "workers with another Python": (
        given(worker=dataclasses.replace(WORKER, version="3.9.18", path="/usr/bin/python3")),
        (
            "broken",
            "Spark workers",
            "/usr/bin/python3 (PYSPARK_PYTHON) is Python 3.9.18, but this is 3.12.1",
            "export PYSPARK_PYTHON=/env/bin/python",
        ),
        (1, 0, 0, 1),
    ),
    "workers without headrace": (
        given(worker=dataclasses.replace(WORKER, headrace=None)),
        ("broken", "Spark workers", "has no headrace", "export PYSPARK_PYTHON=/env/bin/python"),
        (1, 0, 0, 1),
    ),
    "workers with another headrace": (
        given(worker=dataclasses.replace(WORKER, headrace="1.0.0")),
        ("broken", "Spark workers", "has headrace 1.0.0, but this is 1.2.3", "export PYSPARK_PYTHON=/env/bin/python"),
        (1, 0, 0, 1),
    ),
    "workers without pyarrow": (
        given(worker=dataclasses.replace(WORKER, has_pyarrow=False)),
        ("broken", "Spark workers", "has no pyarrow", "export PYSPARK_PYTHON=/env/bin/python"),
        (1, 0, 0, 1),
    ),
    "a PYSPARK_PYTHON that does not exist": (
        given(worker=WorkerPython("PYSPARK_PYTHON", "/gone", None, None, error="No such file")),
        ("broken", "Spark workers", "/gone (PYSPARK_PYTHON) does not run: No such file", ""),
        (1, 0, 0, 1),
    ),
    "workers with another patch release of Python": (
        given(worker=dataclasses.replace(WORKER, version="3.12.9")),
        ("ok", "Spark workers", "3.12.9", ""),
        (0, 0, 0, 0),
    ),
    "a SPARK_HOME of another version": (
        given(spark_home="/opt/spark", spark_home_version="4.2.1"),
        (
            "broken",
            "SPARK_HOME",
            "/opt/spark is Spark 4.2.1, but PySpark is 4.3.0",
            "unset SPARK_HOME, or pip install ",
        ),
        (1, 0, 0, 1),
    ),
    "a SPARK_HOME without Spark": (
        given(spark_home="/opt/spark"),
        ("broken", "SPARK_HOME", "/opt/spark contains no Spark", "unset SPARK_HOME"),
        (1, 0, 0, 1),
    ),
    "the same Spark in SPARK_HOME": (
        given(spark_home="/opt/spark", spark_home_version="4.3.0"),
        ("ok", "SPARK_HOME", "/opt/spark, Spark 4.3.0", ""),
        (0, 0, 0, 0),
    ),
    "Kafka is not downloaded": (
        given(has_kafka=False),
        ("note", "Apache Kafka", "the first `headrace up` downloads it", ""),
        (0, 0, 0, 0),
    ),
    "a cache that cannot be written": (
        given(has_kafka=False, cache_error="no permission"),
        ("broken", "Apache Kafka", "cannot be written: no permission", "set HEADRACE_CACHE"),
        (1, 0, 1, 0),
    ),
    "a full disk": (
        given(has_kafka=False, cache_space=7 * 2**20),
        ("broken", "Apache Kafka", "has 7 MiB of space, but Kafka needs 500", "set HEADRACE_CACHE"),
        (1, 0, 1, 0),
    ),
    "a port in use": (
        given(ports={9092: False}),
        ("note", "port 9092", "another process listens there", "headrace up --port 0"),
        (0, 0, 0, 0),
    ),
    "the local cluster runs": (
        given(cluster="running on 127.0.0.1:9092", ports={9092: False}),
        ("ok", "local cluster", "running on 127.0.0.1:9092", ""),
        (0, 0, 0, 0),
    ),
    "a group of the local cluster waits for a topic": (
        given(cluster="running on 127.0.0.1:9092", missing_topics={"billing": ["Topic ordres does not exist", "So"]}),
        ("note", "group billing", "Topic ordres does not exist. So", "headrace groups -g billing"),
        (0, 0, 0, 0),
    ),
    "the local cluster crashed": (
        given(cluster="crashed"),
        ("broken", "local cluster", "crashed", "headrace down && headrace up"),
        (1, 0, 1, 0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_doctor_names_the_problem_and_the_command_that_fixes_it(case: str) -> None:
    facts, (state, subject, text, fix), codes = CASES[case]
    found = next(finding for finding in diagnose(facts) if finding.subject == subject)
    assert found.state == state
    assert text in found.text
    assert fix in found.fix
    assert bool(fix) == bool(found.fix) or not fix
    assert tuple(report(facts, asked)[1] for asked in ((), ("cli",), ("local",), ("spark",))) == codes


def test_the_report_has_a_line_for_each_finding_and_one_for_its_fix() -> None:
    text, code = report(given(packages=without(CLICK)), ("local",))
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("missing"))
    assert lines[at].split() == ["missing", "[local]", "not", "installed:", "click"]
    assert lines[at + 1].strip() == "→ pip install 'headrace[local]'"  # not cli: local was asked for
    assert (lines[0], lines[-1], code) == ("headrace 1.2.3", "Not usable: [local].", 1)
    assert report(given(), ())[0].endswith("\n\nNothing is broken.")
    assert report(given(), ("all",))[0].endswith("\n\nReady: cli, local, spark.")


def test_missing_packages_are_shown_by_the_smallest_extra_that_installs_them() -> None:
    absent = tuple(dataclasses.replace(package, installed=None) for package in (CLICK, PYSPARK))
    other = Package("pandas", ">=2", None, ("spark",))
    facts = given(packages=(KIO, *absent, other))
    found = {finding.subject: finding.text for finding in diagnose(facts) if finding.state == "missing"}
    assert found == {
        "[cli]": "not installed: click",
        "[local]": "not installed: pyspark",
        "[spark]": "not installed: pandas",
    }
    found = {finding.subject: finding.text for finding in diagnose(facts, ("spark",)) if finding.state == "missing"}
    assert found == {"[cli]": "not installed: click", "[spark]": "not installed: pyspark, pandas"}


def test_an_unknown_extra_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no extra 'sparc'\. Its extras are all, cli, local, spark"):
        report(HEALTHY, ("sparc",))


def test_extras_are_followed_into_other_packages() -> None:
    metadata = {
        "headrace": [
            "kio<0.7,>=0.6.5",
            'headrace[cli,spark] ; extra == "all"',
            "click<9,>=8.1.8 ; extra == 'cli'",
            'pyspark[connect]>=4.2,<5 ; extra == "spark"',
        ],
        "pyspark": ["py4j==0.10.9.9", 'grpcio>=1.76.0; extra == "connect"', 'numpy>=1.2; extra == "ml"'],
    }
    assert needed_packages(lambda name: metadata.get(name, ()), ("all", "cli", "spark")) == {
        "kio": ("<0.7,>=0.6.5", ("core",)),
        "click": ("<9,>=8.1.8", ("all", "cli")),
        "pyspark": (">=4.2,<5", ("all", "spark")),
        "grpcio": (">=1.76.0", ("all", "spark")),
    }


@pytest.mark.parametrize(
    ("version", "span", "is_inside"),
    [
        ("4.2", ">=4.2,<5", True),
        ("4.2.0", ">=4.2,<5", True),
        ("4.1.9", ">=4.2,<5", False),
        ("5.0.0", "<5,>=4.2", False),
        ("10.0", ">=9.5", True),
        ("4.3.0.dev1", ">=4.2,<5", True),
        ("18", ">=18.0.0", True),
        ("1.2.post1", "==1.2", True),
        ("1.3", "==1.2", False),
        ("1.3", "", True),
        ("1.3", "!=1.3", True),
    ],
)
def test_versions_are_compared_with_ranges(version: str, span: str, is_inside: bool) -> None:
    assert is_in_range(version, span) is is_inside


def test_the_version_of_spark_is_read_from_its_jar(tmp_path: Path) -> None:
    assert spark_version(tmp_path) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.2.1.jar").touch()
    assert spark_version(tmp_path) == "4.2.1"


def test_the_doctor_runs_without_click(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ImportError('none', name='click')")
    source = Path(headrace.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{source}", "PYSPARK_PYTHON": sys.executable}

    def run(*arguments: str, shell: str = '"$@"') -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", shell, "bash", sys.executable, "-m", "headrace", "doctor", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"headrace {headrace.__version__}\n\nok       Python ")
    assert "\nok       kio " in done.stdout
    closed = run(shell='"$@" | true; exit ${PIPESTATUS[0]}')
    assert (closed.returncode, closed.stderr) == (0, "")
    wrong = run("nonsense")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("headrace: headrace has no extra 'nonsense'")


def test_the_command_has_the_exit_code_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = given(packages=without(CLICK))
    monkeypatch.setattr("headrace.cli.doctor.examine", lambda asked: report(broken, asked))
    codes = [CliRunner().invoke(command_line, ["doctor", *asked]).exit_code for asked in ((), ("spark",), ("local",))]
    assert codes == [0, 0, 1]


def test_help_without_click(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plain(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: headrace doctor [EXTRA]...")
