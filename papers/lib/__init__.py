"""Data, arms, checks and figures that several papers share."""
