"""Choices between two tokens that rounding may turn over."""
