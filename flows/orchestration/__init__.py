"""Prefect, put on from outside: stages as tasks, schedules, form fields, and artifacts that it shows."""
