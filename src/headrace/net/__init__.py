"""Sockets: frames in and out of one connection. No decisions about clusters or records."""
