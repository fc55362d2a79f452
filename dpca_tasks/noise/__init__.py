"""Random numbers that are derived from secret keys, and integer noise on a public grid."""
