"""What a guarantee costs: events, calibration, prices and filters; the one copy, for core and ledger."""
