"""`paceline serve | proxy`: the models of a pool behind OpenAI's HTTP, or another server, recorded."""

from contextlib import closing
from importlib.util import find_spec
from typing import Annotated

import typer

from ..base.errors import install_hint, needs_torch
from ..base.options import opt
from ..server.options import Address, EngineOptions, FollowOptions, ProxyOptions, RecordingOptions, RequestLimits
from .options import LosslessOption, MemberDevicesOption, PoolOption, ThreadsOption
from .typed import named_texts


def serve(
    *,
    pool: PoolOption = None,
    policy: list[str] | None = opt(
        None,
        "As --policy of compare; repeat it for those that a request may name (its field `policy`), the first "
        "one is for requests that name none. Default: plain.",
    ),
    address: Address,
    engine: EngineOptions,
    limits: RequestLimits,
    recording: RecordingOptions,
    following: FollowOptions,
    device: MemberDevicesOption = None,
    lossless: LosslessOption = False,
    threads: ThreadsOption = 1,
    debug: bool = opt(False, "Check every cache at every step.", flag="--debug/--no-debug"),
) -> None:
    """Serve the models of a pool by OpenAI's HTTP, under a policy: completions, chats, /metrics.

    SIGTERM or Ctrl-C ends it, after the answers that are under way.
    """
    devices = named_texts("--device", "DEVICE", device)
    following.check_recorded(recording)
    _check_installed("serve", "fastapi", "uvicorn")
    from ..server.listening import bound_socket

    with closing(bound_socket(address)) as listening:  # a bad address is reported before torch is loaded
        with needs_torch():
            from ..server.start import ServedPool
            from ..server.start import serve as serve_pool
        served = ServedPool(
            pool=pool,
            policies=policy or ["plain"],
            lossless=lossless,
            engine=engine,
            threads=threads,
            devices=devices,
            debug=debug,
        )
        serve_pool(served, limits, listening, address, recording, following)


def proxy(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="http://HOST:PORT of an OpenAI-compatible server.")],
    address: Address,
    recording: RecordingOptions,
    options: ProxyOptions,
) -> None:
    """Stand before another server and record its traffic.

    Answers pass byte for byte, as they come. Recorded are an observed run, a workload, and what answers tell of their
    drafts. SIGTERM or Ctrl-C ends it.
    """
    _check_installed("proxy", "h11", "uvicorn")
    from ..server.proxy import proxy as pass_on

    pass_on(url, options, address, recording)


def _check_installed(command: str, *modules: str) -> None:
    missing = next((module for module in modules if find_spec(module) is None), None)
    if missing is not None:
        raise ModuleNotFoundError(f"{command} needs {missing}: {install_hint('serve')}")
