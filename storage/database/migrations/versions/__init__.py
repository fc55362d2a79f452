"""One file a migration; a published one never changes."""
