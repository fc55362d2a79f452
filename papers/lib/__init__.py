"""Data, compared methods, checks and figures that several papers share."""
