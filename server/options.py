"""Options of `serve` and `proxy`, each declared once; nothing here needs torch or a web server."""

from dataclasses import dataclass
from pathlib import Path

from ..base.errors import ArgumentError, check_within
from ..base.options import Secret, check_leasts, given, key_opt, opt

MOST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens, and which clients it answers."""

    host: str = opt("127.0.0.1", "Address to listen at; a public one needs --api-key-env.")
    port: int = opt(8000, "0 takes a free one.", least=0, most=MOST_PORT)
    api_key: Secret | None = key_opt(
        "Environment variable that holds the key which clients must send. Default: no key is needed."
    )
    drain_s: float = opt(
        30.0, "Most seconds that answers under way may take after SIGTERM or Ctrl-C.", flag="--drain-seconds"
    )

    def __post_init__(self) -> None:
        check_within("`port`", self.port, f"[0, {MOST_PORT}]")
        check_within("`drain_s`", self.drain_s, "[0, 1e6]")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What runs at a time under each policy; raises ArgumentError for a number out of range."""

    max_batch: int = opt(8, "Requests that run at a time under each policy.", least=1)
    token_budget: int = opt(
        2048, "Tokens that a step of the target reads at most; longer prompts are read in chunks.", least=1
    )
    kv_blocks: int | None = opt(
        None,
        "Blocks of 16 tokens of each member under each policy; where short, the youngest request waits. Default: "
        "enough for --max-batch requests of the whole context.",
        least=1,
    )

    def __post_init__(self) -> None:
        check_leasts(self)


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What clients may ask for; raises ArgumentError for a number out of range."""

    max_queue: int = opt(256, "Requests that wait at most; the next one gets status 429.", least=0)
    max_tokens: int | None = opt(None, "Longest answer that may be asked for. Default: as the context allows.", least=1)
    max_body_kib: int = opt(1024, "Longest body of a request.", least=1)
    timeout_s: float = opt(600.0, "Most seconds from a request to its last token.", flag="--timeout-seconds")

    def __post_init__(self) -> None:
        check_leasts(self)
        check_within("`timeout_s`", self.timeout_s, "(0, 1e6]")


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """What is kept of the traffic, if anything; raises ArgumentError for a number out of range."""

    record: Path | None = opt(
        None,
        "New folder for the traffic: arrivals, lengths, prompts, and what answers tell of their acceptance, in whole "
        "files.",
        metavar="DIR",
    )
    record_hashes: bool = opt(False, "With --record: keep hashes of prompts, and not the prompts.")
    record_every_s: float = opt(60.0, "With --record: seconds from a file to the next.", flag="--record-every")
    record_mib: int = opt(1024, "With --record: MiB on disk at most; then nothing more is kept.", least=1)

    def __post_init__(self) -> None:
        check_leasts(self)
        check_within("`record_every_s`", self.record_every_s, "[0.01, 1e6]")
        if self.record is None and given(self):
            raise ArgumentError("`record_hashes`, `record_every_s` and `record_mib` go with `record`")


@dataclass(frozen=True, kw_only=True)
class FollowOptions:
    """When another of the served policies is tried; raises ArgumentError for a number out of range."""

    follow: Path | None = opt(
        None,
        "Cluster file with a fitted cost. What --record keeps is simulated on it; a --policy that comes out faster is "
        "tried on half of the requests that name none, and kept if it measures faster.",
        metavar="CLUSTER",
    )
    follow_every_s: float = opt(
        600.0, "With --follow: seconds from a simulation to the next, and of traffic in it.", flag="--follow-every"
    )
    follow_pairs: int = opt(200, "With --follow: pairs of requests that a policy is tried on.", least=40)

    def __post_init__(self) -> None:
        check_leasts(self)
        check_within("`follow_every_s`", self.follow_every_s, "[1, 1e6]")
        if self.follow is None and given(self):
            raise ArgumentError("`follow_every_s` and `follow_pairs` go with `follow`")

    def check_recorded(self, recording: RecordingOptions | None) -> None:
        """Raises ArgumentError where a policy is to be chosen by traffic that is not recorded."""
        if self.follow is not None and (recording is None or recording.record is None):
            raise ArgumentError("`follow` goes with `record`")


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """How `paceline proxy` passes requests on; raises ArgumentError for a number out of range."""

    model: str | None = opt(None, "Whose requests are recorded; default: the only one that the server lists.")
    drafter: str = opt(
        "", "What the server's drafter is called, for the record: runs of others are not calibrated together."
    )
    upstream_key: Secret | None = opt(
        None,
        "Environment variable that holds the server's key: for the proxy's own questions, and with --api-key-env for "
        "clients' requests, whose key is the proxy's.",
        flag="--upstream-key-env",
        metavar="NAME",
    )
    count_tokens: bool = opt(False, "Where an answer has no usage, let the server's tokenizer count, once it ended.")
    max_open: int = opt(1024, "Requests under way at most; the next one gets status 429.", least=1)
    max_body_kib: int = opt(16384, "Longest body of a request.", least=1)
    timeout_s: float = opt(
        600.0, "Most seconds that the server may say nothing while it is waited for.", flag="--timeout-seconds"
    )

    def __post_init__(self) -> None:
        check_leasts(self)
        check_within("`timeout_s`", self.timeout_s, "(0, 1e6]")
