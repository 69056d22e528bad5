"""What an arena is asked for: its cells, the policies in its field, and what their results depend on.

It may import all but the command line.
"""
