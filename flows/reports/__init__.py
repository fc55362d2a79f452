"""Reports for users and logs, such as facts of budgets, tables, charts and log lines."""
