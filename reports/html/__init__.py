"""A run as a folder of static pages: a table of its cells, figures, a page a cell, and every output token by token."""
