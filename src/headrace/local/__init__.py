"""Runs Apache Kafka on this machine, for development and tests: `LocalBroker`; and a schema registry: `LocalRegistry`.

It needs Java 17 or newer. The first start also needs PySpark and a network (`pip install 'headrace[local]'`).
"""

from .broker import LocalBroker
from .errors import LocalBrokerError
from .ivy import DownloadProgress
from .registry import LocalRegistry
from .tools import java_classpath, java_command

__all__ = ["DownloadProgress", "LocalBroker", "LocalBrokerError", "LocalRegistry", "java_classpath", "java_command"]
