"""Working ahead: several members at one request at once, and how their answers are put together.

Standard library only; imports the engine's records and text, and neither world.
"""
