"""The engine that both worlds and every policy stand on: steps, sessions, the loop, and what it says to a world.

Standard library and numpy only; imports neither policies nor traces nor either world.
"""
