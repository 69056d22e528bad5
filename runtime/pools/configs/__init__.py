"""Configs of pool members, read and checked before any weights are loaded."""
