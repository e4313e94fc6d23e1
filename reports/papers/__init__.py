"""The tables and figures of the five papers, printed next to measured."""
