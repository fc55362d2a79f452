"""Tables, connections and migrations of the ledger, catalog and registry index, for SQLite and PostgreSQL."""
