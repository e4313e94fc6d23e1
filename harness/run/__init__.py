"""Running the cells of a plan: executors run groups; a group is loaded, decoded, scored, proved and sealed."""
