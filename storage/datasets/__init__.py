"""Snapshots of private rows: ingested, catalogued, read, exported and removed."""
