"""The migrations, one file each; a published migration never changes."""
