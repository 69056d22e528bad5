"""The engine that both worlds and every policy use: steps, sessions, the loop, and its interface to a world.

Standard library and numpy only; imports neither policies nor traces nor either world.
"""
