"""What was seen of a server by its client: requests with their times, kept as a folder, read back and checked.

Imports traces and the folder of a run beside it; no client and no report.
"""
