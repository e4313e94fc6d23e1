"""Tables, figures, comparisons and gates: they read stores and never import torch."""
