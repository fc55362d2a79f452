"""Creation, restoration and rehearsal of backups of a home."""
