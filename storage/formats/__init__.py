"""Readers of users' files: each yields batches of rows, in file order."""
