"""The two-worlds test: neighbouring datasets with equal noised answers give equal public outputs, byte for byte."""
