"""The tables and figures of the five papers, printed beside measured."""
