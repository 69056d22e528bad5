"""The arena: policies over a matrix of cells, each a recording at a ladder of costs under a load."""
