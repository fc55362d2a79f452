"""Forecasts of a release from public facts and declarations, before anything is spent."""
