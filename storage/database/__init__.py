"""The tables of ledger, catalog and registry index, on SQLite or PostgreSQL with the same code."""
