"""Replay of recordings that know rounds: looked up, and drawn where no round says it."""
