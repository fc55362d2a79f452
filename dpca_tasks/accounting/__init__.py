"""Privacy accounting (events, calibration, prices, budgets), used by the mechanisms and by the ledger."""
