"""KIP-333: the live and the backlog lane of one partition, and the metadata committed for them."""
