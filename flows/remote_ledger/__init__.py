"""A remote ledger: one process holds database and keys, and those who release ask it, each by a certificate."""
