"""The command line: the only code that knows both worlds.

One file per group of commands; torch is imported only within `needs_torch`.
"""
