"""Which replicas of a cluster file prefill for others, and the link between them."""

from pathlib import Path

from ....traces.recording import Recording
from ..roles import Role, Transfer
from .cluster_file import ClusterContent, ClusterFileError


def transfer_of(content: ClusterContent, path: Path | str, recording: Recording) -> Transfer | None:
    """The link that a content describes; None where every replica does both.

    Args:
        content: of a file.
        path: of it, for messages.
        recording: whose target writes the keys and values.

    Raises:
        ClusterFileError: roles that do not go together, a link that nobody uses or that is missing, an unknown shape.
    """
    rows = {role: [row for row, table in enumerate(content.replicas) if table.role == role] for role in Role}
    for one, other in ((Role.prefill, Role.decode), (Role.decode, Role.prefill)):
        if rows[one] and not rows[other]:
            rule = f"must be both where no replicas are of role {other}"
            raise ClusterFileError(path, f"replicas[{rows[one][0]}].role", rule, str(one))
    asked = content.transfer
    if asked is None:
        if rows[Role.prefill]:
            raise ClusterFileError(path, "transfer", "must be given where replicas prefill for others", None)
        return None
    if not rows[Role.prefill]:
        raise ClusterFileError(path, "transfer", "must be left out where no replicas prefill for others", "a link")
    known = recording.known_shapes().get(recording.about.target)
    shape = None if known is None else known.shape
    token_bytes = asked.kv_bytes_per_token
    if token_bytes is None:
        if shape is None:
            rule = f"must be given: the shape of {recording.about.target} is not known (`models` gives it)"
            raise ClusterFileError(path, "transfer.kv_bytes_per_token", rule, None)
        token_bytes = shape.kv_bytes_per_token
    return Transfer(bytes_per_s=asked.bytes_per_s, latency_s=asked.latency_s, token_bytes=token_bytes)
