"""Durable storage of datasets, the budget ledger and the registry of releases."""
