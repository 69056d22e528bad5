"""The main jobs as functions: what the command line and notebooks call.

Imports the worlds and everything below them; has no command-line options and prints nothing.
"""
