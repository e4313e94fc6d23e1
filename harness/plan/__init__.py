"""From a suite file to the cells of a run."""
