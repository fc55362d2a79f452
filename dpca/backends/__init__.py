"""Storage backends (a local folder or an S3-compatible store), and crash-safe files."""
