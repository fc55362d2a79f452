"""Privacy accounting: events, calibration, prices and filters, shared by the core and the ledger."""
