"""Service levels: what requests are promised, by class, which of them got it, and the figures of each class.

Imports the logs of runs and tables; nothing of the simulator.
"""
