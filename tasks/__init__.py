"""One file per data set: its prompts and how its outputs are scored."""
