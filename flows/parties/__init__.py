"""HTTPS between processes with pinned certificates, for sites and for the remote ledger."""
