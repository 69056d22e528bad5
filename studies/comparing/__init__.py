"""The parts of a comparison: what was asked, scenarios by seed, runs of policies, and what is told beside the table.

Imports the simulator and everything below it.
"""
