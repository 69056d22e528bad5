"""Replay of recordings that know contexts: walks in a request's trie."""
