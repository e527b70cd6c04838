"""A standalone Spark cluster on this machine: a master and two workers, from the installed PySpark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from headrace.local.process import GuardedProcess
from support.harness.waiting import wait_for

_STARTS_WITHIN = 60.0


class SparkCluster:
    """The cluster ends with this process. Executors end when they lose their worker."""

    def __init__(self, directory: Path, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")) -> None:
        """One worker for each host. Speculative tasks run only on another host than the first attempt."""
        self._directory = directory
        self._processes: list[GuardedProcess] = []
        try:
            port = self._start("master", "deploy.master.Master", [], r"'sparkMaster' on port (\d+)", "127.0.0.1")
            self.url = f"spark://127.0.0.1:{port}"
            for number, host in enumerate(hosts):
                work = directory / f"worker-{number}"
                arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url]
                says = r"Successfully registered with (.+)"
                self._start(f"worker-{number}", "deploy.worker.Worker", arguments, says, host)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, main: str, arguments: list[str], says: str, host: str) -> str:
        """Start a process and wait for the output `says`; return its first group."""
        home = Path(pyspark.__file__).parent
        command = [
            *("env", f"SPARK_HOME={home}", "SPARK_DAEMON_MEMORY=256m", str(home / "bin" / "spark-class")),
            f"org.apache.spark.{main}",
            *("--host", host, "--port", "0", "--webui-port", "0", *arguments),
        ]
        output = self._directory / f"{name}.log"
        with output.open("wb") as file:
            process = GuardedProcess(command, output=file)
        self._processes.append(process)

        def ready() -> re.Match[str] | None:
            said = output.read_text(errors="replace")
            assert process.is_alive(), f"{name} ended:\n{said[-3000:]}"
            return re.search(says, said)

        found = wait_for(f"{name} to start", ready, _STARTS_WITHIN)
        assert found is not None
        return found[1]

    def close(self) -> None:
        for process in reversed(self._processes):
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
