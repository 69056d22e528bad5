"""Parts of `studies.agree`: the recording, the two runs of a policy, and near ties where they differ.

Needs torch; only `studies.agree` imports it.
"""
