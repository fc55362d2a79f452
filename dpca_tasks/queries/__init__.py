"""Queries: sums over private records of bounded integer contributions, each with a proved sensitivity.

Only queries read private rows.
"""
