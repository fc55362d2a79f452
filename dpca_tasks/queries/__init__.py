"""Queries: sums of bounded integer contributions of records, with a proved sensitivity. Only they read private rows."""
