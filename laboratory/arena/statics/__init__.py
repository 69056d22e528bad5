"""The best static chain of a cell in hindsight, by search: what policies of the arena are compared with.

It may import all but the command line.
"""
