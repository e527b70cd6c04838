"""Connections to the brokers of a cluster, and metadata that is kept fresh."""
