"""Snapshots of private rows, with their ingest, catalog, reader, export and removal."""
