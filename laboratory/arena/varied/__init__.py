"""What SpecRouter's constants and ingredients are worth: it is played with one of them changed at a time.

It may import all but the command line.
"""
