"""The trust boundary: the gate, and the curator, whose methods are the only exports through it."""
