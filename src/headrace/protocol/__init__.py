"""Kafka's messages: which there are, in which versions, and how they are read and written. No I/O."""
