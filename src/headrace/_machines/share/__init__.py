"""Share groups: membership, sessions, acquired records and their locks (KIP-932, KIP-1206, KIP-1222)."""
