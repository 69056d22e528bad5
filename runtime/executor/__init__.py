"""Carries out the operations of the loop with real models: draft, verify, roll back, for ragged batches.

Names follow SpecRouter (arXiv:2505.07680). May import the runtime's kv, forward, state, sampling, tokenizers and pools;
of the policies only steps, stops, rules, sessions and what the loop hands over, no policy.
"""
