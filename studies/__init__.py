"""The main jobs as functions: what the command line and notebooks call.

Imports the worlds and everything below them; knows no options and prints nothing.
"""
