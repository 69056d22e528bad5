"""Measures a machine's seconds for the operations of a pool: forwards by shape, and everything beside them."""
