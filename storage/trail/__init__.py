"""Audit trail of a ledger, with its signed checkpoints and their offline verification without a database."""
