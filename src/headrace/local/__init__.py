"""Runs Apache Kafka on this machine, for development and tests: `LocalBroker`.

It needs Java 17 or newer. The first start also needs PySpark and a network (`pip install 'headrace[local]'`).
"""

from .broker import LocalBroker
from .errors import LocalBrokerError
from .ivy import Progress
from .tools import java_classpath, java_command

__all__ = ["LocalBroker", "LocalBrokerError", "Progress", "java_classpath", "java_command"]
