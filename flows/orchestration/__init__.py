"""Integration of Prefect with stages as tasks, schedules, deployment notes and displayed artifacts."""
