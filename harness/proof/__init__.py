"""Whether a method samples what it claims: enumeration, mutants, verdicts."""
