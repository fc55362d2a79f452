"""The documents, and what makes the pages that are made."""
