"""Workers that run cells: a process on this machine, Ray, and Slurm; `protocol` says what they are told."""
