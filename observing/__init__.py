"""Drives a server of language models over HTTP, and writes down what a client sees of it: HTTP of the standard library.

Beside sim and runtime, and imports neither; what is read and written lies in `runs.observed`.
"""
