"""The record: datasets, the budget ledger, the registry of releases. Orchestration and computing stand above it."""
