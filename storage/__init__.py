"""Durable storage: datasets, the budget ledger, and the registry of releases."""
