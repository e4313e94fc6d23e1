"""Matrix products for few rows: packed fp32 and bf16, and weights rounded to 8 and 4 bits."""
