"""The trust boundary, with the gate and the curator, whose methods are the only exports of data."""
