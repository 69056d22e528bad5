"""What a machine was measured to take for the operations of a pool: read by the simulator, written by the runtime.

Imports traces and the root modules; neither world.
"""
