"""Jacobi windows."""
