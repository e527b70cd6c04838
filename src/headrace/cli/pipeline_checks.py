"""What `headrace run` needs of this machine, checked before anything starts: Spark's own errors name neither the cause
nor the remedy, and come after the broker, the sample and Spark have started."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from .._version import __version__
from .doctor_checks import spark_home_finding, worker_finding
from .doctor_probes import ask_python, spark_version
from .formatting import words
from .pipeline_launch import PipelineError
from .spark_server import is_remote

_NEEDED = ("pyspark", "pyarrow", "grpc", "yaml")
_PYTHON, _DRIVER_PYTHON = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"


def check_packages() -> None:
    """Raises PipelineError with everything to install."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    # First, because packages that only pipelines need would be installed in vain.
    if "pyspark" not in missing and find_spec("pyspark.pipelines") is None:
        installed = importlib.metadata.version("pyspark")
        raise PipelineError(f"pipelines need PySpark 4.1 or newer, not {installed}: pip install 'pyspark>=4.1,<5'")
    if missing:
        raise PipelineError(f"pipelines need {words(missing)}: pip install 'headrace[spark-connect,local]'")


def check_pythons(master: str) -> None:
    """Check the interpreters that the environment chooses for Spark's Python processes. This one needs no check."""
    for name in _checked_variables(master):
        chosen = os.environ[name]
        path = shutil.which(chosen)
        if path is None:
            raise PipelineError(
                f"{name} is {chosen}, which is not a program: unset it, or export {name}={sys.executable}"
            )
        if not _is_this_python(Path(path)):
            found = worker_finding(ask_python(name, path), sys.version_info[:3], sys.executable, __version__)
            if found.state == "broken":
                raise PipelineError(f"Spark cannot run the pipeline: {found.text}: unset {name}, or {found.fix}")


def check_spark_home(master: str) -> None:
    """A Spark of another version than PySpark may work, so only `headrace doctor` reports it."""
    home = os.environ.get("SPARK_HOME")
    if home and not is_remote(master) and spark_version(Path(home)) is None:
        found = spark_home_finding(home, None, None)
        raise PipelineError(f"Spark cannot start: SPARK_HOME: {found.text}: {found.fix}")


def _checked_variables(master: str) -> Iterator[str]:
    """The variables that choose an interpreter of this machine. A Connect server has its own environment, and the
    workers of a cluster run on other machines if the driver has an interpreter of its own."""
    if is_remote(master):
        return
    has_driver = bool(os.environ.get(_DRIVER_PYTHON))
    if os.environ.get(_PYTHON) and (master.startswith("local") or not has_driver):
        yield _PYTHON
    if has_driver:
        yield _DRIVER_PYTHON


def _is_this_python(path: Path) -> bool:
    """Whether it is another name of this interpreter. Interpreters of virtual environments are links to the same file,
    so the directory counts, too."""
    here = Path(sys.executable)
    return path == here or (path.samefile(here) and path.parent.resolve() == here.parent.resolve())
