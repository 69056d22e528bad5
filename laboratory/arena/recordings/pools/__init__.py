"""Small pools of several architectures, trained for the arena to agree with their targets as far as is asked for.

Only the modules that train need torch; recipes are read without.
"""
