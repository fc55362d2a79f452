"""Data, arms, checks and figures shared by several papers."""
