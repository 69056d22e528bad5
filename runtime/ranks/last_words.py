"""Which of several processes says why a run ends: the first that fails; the others only notice that it is gone."""

import os
from datetime import timedelta

import torch.distributed as dist

_PATIENCE = timedelta(seconds=10)


def first_to_fail() -> bool:
    """Whether no other process has failed before this one, as far as can be found out. It counts as failed now."""
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=_PATIENCE)  # type: ignore[attr-defined]
        return store.add(f"paceline/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1) == 1
    except (KeyError, ValueError, RuntimeError):  # nobody is left to be asked
        return True


def of_a_lost_rank(error: BaseException) -> str | None:
    """What to say of an error that another process caused by ending or by keeping silent; None of other errors."""
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
        return f"another process of torchrun has ended, or does not answer ({error})"
    return None
