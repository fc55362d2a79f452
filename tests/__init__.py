"""Tests, with one folder for each folder of the product, and the programs that run the whole product."""
