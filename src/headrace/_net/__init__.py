"""Connections to brokers: sockets, TLS, logins, requests and responses. Nothing here knows clusters or records."""
