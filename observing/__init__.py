"""Sends requests to a server of language models, with the standard library's HTTP, and records what a client sees.

Imports neither sim nor runtime; the files are those of `runs.observed`.
"""
