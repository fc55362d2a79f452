"""Requests: what a user asks of each family, declared without the libraries that answer it."""
