"""Finding, fetching, checking and converting weights."""
