"""Ledger of budgets and releases, which charges each release exactly once."""

from storage.ledger.ledger import Ledger

__all__ = ["Ledger"]
