"""Reports to people and logs: facts of a budget, tables, charts, and log lines."""
