"""Output for users and logs: tables, charts, progress lines, log lines and the facts of budgets and releases."""
