"""Backups of a home: made at one point of the journal, restored into what is empty, and rehearsed."""
