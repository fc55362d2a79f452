"""Tests of what mechanisms are assembled from."""
