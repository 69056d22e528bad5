"""Drafters and submodels of a model that exists already, trained on what it writes itself."""
