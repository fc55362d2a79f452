"""Remote ledger, in which one process holds the database and keys, and clients authenticate by certificates."""
