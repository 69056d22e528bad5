"""A drafter that reads the target's last hidden states, as EAGLE's does: its input layer, forwards and verdicts."""
