"""The files that workloads are read from, one module a family: row by row, each breach named with its line.

Knows nothing of scaling; `options` has that.
"""
