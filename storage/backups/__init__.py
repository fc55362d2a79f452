"""Creation, restoration and rehearsals (test restores) of backups of a home."""
