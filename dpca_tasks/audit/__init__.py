"""Audits: attacks on running mechanisms whose success proves a lower bound on epsilon."""
