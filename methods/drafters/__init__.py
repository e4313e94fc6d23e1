"""Drafters that several methods share; methods never import one another."""
