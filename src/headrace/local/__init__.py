"""Runs Apache Kafka on this machine, for development and tests: `LocalBroker`.

It needs Java 17 or newer. The first start also needs PySpark and a network (`pip install 'headrace[local]'`).
"""

from .broker import LocalBroker
from .errors import LocalBrokerError
from .ivy import DownloadProgress
from .tools import java_classpath, java_command

__all__ = ["DownloadProgress", "LocalBroker", "LocalBrokerError", "java_classpath", "java_command"]
