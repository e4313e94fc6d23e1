"""Draft trees."""
