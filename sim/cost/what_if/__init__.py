"""Seconds of another device, of other models, or scaled by member."""
