"""Privacy accounting shared by the numerical core and the ledger."""
