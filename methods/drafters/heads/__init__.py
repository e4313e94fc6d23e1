"""Prediction heads."""
