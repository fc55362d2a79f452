"""The algorithms. Each is written against the curator alone, so all of it is post-processing."""
