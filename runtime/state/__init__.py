"""What the runtime holds for running requests: caches of every member, and what was said of pending tokens.

May import runtime.kv, runtime.sampling, runtime.next_token_views, sessions and torch; knows nothing of
operations.
"""
