"""Seconds of forwards: from device sheets, measured tables and kernels, lines, or the seconds in a recording.

Imports nothing of the simulator, which has no other model of a device.
"""
