"""Schemas of tables, which declare the columns of a table and the encoding of their values as numbers."""
