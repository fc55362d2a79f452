"""Pinned certificates, frames, calls and services by which processes communicate; sites and the ledger use them."""
