"""Drafters for a model that exists already, trained on what it writes itself."""
