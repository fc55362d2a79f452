"""Queries, which sum bounded integer contributions of records with a proved sensitivity.

Only queries read private rows.
"""
