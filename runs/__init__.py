"""The log of a run, the same form for both worlds: how it is collected, written and read."""
