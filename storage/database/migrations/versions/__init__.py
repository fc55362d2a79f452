"""Migrations, one file each; a published migration never changes."""
