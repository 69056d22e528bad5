"""Parts of `studies.agree`: the recording, and the two runs of a policy.

Needs torch; beside `studies.agree` only `laboratory.model_runs` imports it.
"""
