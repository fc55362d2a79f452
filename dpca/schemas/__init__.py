"""Schemas of tables: the names of columns, and the encoding of their values as numbers."""
