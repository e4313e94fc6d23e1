"""`stride bench` and `stride layers`: speed beside peers, costs of passes, what an adapter does to rows."""
