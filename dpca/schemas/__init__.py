"""What is declared about the columns of a table: their names, and how their values become numbers."""
