"""Tests: one folder for each folder of the product, and programs that run it whole."""
