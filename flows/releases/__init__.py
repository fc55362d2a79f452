"""One release: planned, previewed, and published."""
