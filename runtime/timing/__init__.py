"""Seconds of the runtime: measured, or taken from a price list."""
