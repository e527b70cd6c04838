"""The Spark Connect server of `headrace run`: a JVM that is started here, unless the master is a running server.

A thread starts the JVM, while the main thread imports the client of Spark Connect, which takes a second.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import HeadraceError
from ..local.ports import free_ports
from .pipeline_progress import logging_properties
from .spark_home import fast_home

TABLES, PROGRESS, LOGGING = "tables", "progress.log", "log4j2.properties"
CATALOG_SETTING, IN_MEMORY = "spark.sql.catalogImplementation", "in-memory"
# Names of settings that Spark does not log: its default, Java's login configuration, keys, and certificates, whose
# value may contain a key.
REDACTED = "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key|key[.]pem|certificate[.]chain|certificate[.]pem"
_STARTS_WITHIN = 300.0  # seconds; a busy machine takes one minute
_OPTIONS = "spark.driver.extraJavaOptions"
# Verifying 20,000 classes takes seconds, and the jars are those that pip has installed. A Java that does not know the
# option ignores it.
_UNVERIFIED = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def is_remote(master: str) -> bool:
    """Whether Spark is a running Connect server."""
    return master.startswith("sc://")


class SparkServer:
    """Call `launch`, then `connect`. Raises LocalBrokerError without Java, HeadraceError if it does not start."""

    def __init__(self, master: str, state: Path, scratch: Path) -> None:
        self._master = master
        self._state = state.absolute()
        self._scratch = scratch
        self._url = master
        self._settings: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._gateway: Any = None
        self._error: BaseException | None = None

    def launch(self, configuration: Mapping[str, str]) -> None:
        """Start the JVM with the settings that begin with `spark.`, and return at once."""
        chooses_python = "PYSPARK_PYTHON" in os.environ
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if is_remote(self._master):
            return
        if self._master.startswith("local") and not chooses_python and (home := fast_home()) is not None:
            os.environ["SPARK_HOME"] = str(home)
        # As SparkSession.builder does, but with another port: 15002 may be in use.
        (port,) = free_ports(1)
        self._url = f"sc://localhost:{port}"
        os.environ["SPARK_LOCAL_REMOTE"] = "1"
        self._settings = self._server_settings(configuration, port)
        # Imported before the thread starts: two threads cannot import the modules of PySpark at the same time.
        from pyspark import SparkConf, java_gateway

        conf = SparkConf(loadDefaults=False).setMaster(self._master).setAll(list(self._settings.items()))
        self._thread = threading.Thread(target=self._launch, args=(java_gateway.launch_gateway, conf), daemon=True)
        self._thread.start()

    def _launch(self, launch_gateway: Callable[[Any], Any], conf: Any) -> None:
        try:
            self._gateway = launch_gateway(conf)
        except BaseException as error:  # noqa: BLE001  # `connect` raises it
            self._error = error

    def connect(self) -> Any:
        """A session of the server."""
        from pyspark.sql.connect.session import SparkSession

        if self._thread is not None:
            from pyspark import SparkContext

            self._thread.join(_STARTS_WITHIN)
            if self._thread.is_alive():
                raise HeadraceError(
                    f"Spark's JVM did not start within {_STARTS_WITHIN:.0f} s: the log shows what it has printed. "
                    "Check that this machine has memory left, and run the command again."
                )
            if self._error is not None:
                raise self._error
            SparkContext._ensure_initialized(gateway=self._gateway)
            SparkSession._start_connect_server(self._master, self._settings)
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        return SparkSession.builder.remote(self._url).getOrCreate()

    def _server_settings(self, configuration: Mapping[str, str], port: int) -> dict[str, str]:
        """They are on the command line of the JVM, which all users can see: no credentials for Kafka."""
        logging = self._state / LOGGING
        logging.write_text(logging_properties(self._state / PROGRESS))
        found = {
            CATALOG_SETTING: IN_MEMORY,
            "spark.sql.warehouse.dir": str(self._state / TABLES),
            "spark.ui.enabled": "false",
            "spark.redaction.regex": REDACTED,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        if self._master.startswith("local"):
            found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        found |= {name: value for name, value in configuration.items() if name.startswith("spark.")}
        # Quoted: a path may have spaces.
        own = [f'"-Dlog4j2.configurationFile={logging.as_uri()}"', f'"-Djava.io.tmpdir={self._scratch}"']
        found[_OPTIONS] = " ".join(filter(None, (*own, _UNVERIFIED, found.get(_OPTIONS))))
        return found
