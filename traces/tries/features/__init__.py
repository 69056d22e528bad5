"""What a drafter that reads the target's states says at every depth: a part of the trie that few pools have."""
