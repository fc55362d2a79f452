"""Readers of users' files, which yield batches of rows in file order."""
