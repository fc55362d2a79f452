"""Keyed randomness and integer noise on the grid."""
