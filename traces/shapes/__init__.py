"""Shapes of models for cost models: from Hugging Face configs, and presets by name.

Needs the standard library only; loads no weights and asks no hub.
"""
