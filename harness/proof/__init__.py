"""Proofs that a method samples the distribution that it claims: enumeration, mutants, verdicts."""
