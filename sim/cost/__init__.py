"""Seconds of forwards: from device sheets, measured tables and kernels, lines, or the seconds a recording holds.

Imports nothing of the simulator; replay asks it and knows no more of a device.
"""
