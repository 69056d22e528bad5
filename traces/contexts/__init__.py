"""Recordings of contexts: the token trie of each request, with every model's view of each context."""
