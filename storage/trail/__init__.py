"""The audit trail: what a ledger signs, and its check by others, offline, without a database."""
