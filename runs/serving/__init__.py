"""What a serving run writes down: told by an engine while it runs, kept as a folder, read back and checked.

Imports traces and the log of a run beside it; no engine and no report.
"""
