"""Audits of mechanisms: attacks on their output, whose success proves a lower bound of the true epsilon."""
