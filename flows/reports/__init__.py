"""What people and logs are told: facts of a budget, tables, charts, and log lines."""
