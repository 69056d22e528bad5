"""Experiments on the shipped pool and recording: each a file that measures, tabulates, draws and answers one question.

Part of the command line: may import the simulator, policies, reports and traces, and the runtime through its door only.
"""
