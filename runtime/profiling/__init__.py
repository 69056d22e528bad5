"""Measures what a machine takes for the operations of a pool: forwards by shape, and all that is beside them."""
