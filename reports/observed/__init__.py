"""Figures and tables of what clients saw of servers, and simulated figures beside them.

Imports runs and reports; no client and no simulator.
"""
