"""Experiments: each a file that measures, tabulates, draws and answers one question."""
