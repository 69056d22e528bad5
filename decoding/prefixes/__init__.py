"""What members keep of the texts they have read, so that texts with the same beginning are read once; both worlds.

Imports nothing of a world: blocks are numbered here, and hold keys and values only where a world puts them there.
"""
