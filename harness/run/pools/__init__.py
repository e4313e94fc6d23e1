"""Pools of workers that run the cells of a plan: what is common to them, Ray, and Slurm."""
