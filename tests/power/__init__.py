"""The power of the audit: planted biases on small trained models, and the tokens that refute each of them."""
