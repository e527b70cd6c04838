"""The version, as packaging and brokers see it."""

__version__ = "0.1.0"
