"""Benchmarks that report the speed of dpca relative to other libraries (the peers), timed in turn in one run."""
