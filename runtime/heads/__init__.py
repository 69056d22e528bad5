"""Output heads over a part of the vocabulary, and embeddings that a model shares with another one."""
