"""Remote ledger: one process holds the database and keys, and serves clients that authenticate by certificates."""
