"""Communication between processes by pinned certificates and frames, used by sites and the ledger."""
