"""Readers of the files users bring: every one yields batches of whole records, in file order."""
