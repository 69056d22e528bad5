"""What a run of the arena is played on: a recording ready for replay, an engine that serves it, a clock of thinking.

It may import all but the command line.
"""
