"""Views of any number of runs for SQL: their columns, their rows, and the database that reads them."""
