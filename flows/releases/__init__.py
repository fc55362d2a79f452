"""Stages, previews, streams and notices of releases."""
