"""Forecasts of a release from public facts and declarations, before any budget is spent."""
