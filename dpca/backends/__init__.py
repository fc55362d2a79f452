"""Storage backends (a local folder, an S3-compatible store, a web server), and the writing of crash-safe files."""
