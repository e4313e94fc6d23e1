"""Running the cells of a plan."""
