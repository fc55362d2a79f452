"""Processes that talk to each other: pinned certificates, frames, calls and services. Sites and the ledger use them."""
