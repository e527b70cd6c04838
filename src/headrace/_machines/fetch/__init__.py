"""What to fetch from which broker, the state of each assigned partition, and what a poll returns (KIP-41)."""
