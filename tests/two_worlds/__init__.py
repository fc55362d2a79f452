"""Two-worlds test: if noised answers are equal, neighboring datasets give equal public outputs, byte for byte."""
