"""Mechanisms. They get noisy answers from the curator, which alone reads private rows; the rest is post-processing."""
