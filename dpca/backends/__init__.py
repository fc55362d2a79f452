"""Storage backends: a local folder or an S3-compatible store, and files that survive a crash."""
