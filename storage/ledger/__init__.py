"""Budgets, releases, and the protocol that spends exactly once."""

from storage.ledger.ledger import Ledger

__all__ = ["Ledger"]
