"""What a verifier accepts and what ends a draft: declarative values whose test is plain arithmetic and comparisons.

Imports nothing but numbers: a rule knows neither sessions nor worlds.
"""
