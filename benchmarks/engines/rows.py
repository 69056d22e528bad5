"""Measured rows of engines, each with the shapes of its models, in the forms of the folder `engine_rows`.

A plain row is a mean time per output token (TPOT) at a concurrency; a row of speculation is the seconds of a round:
tokens accepted per round over tokens per second. A cost's forwards predict the rows (`predicted_s`).
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from paceline.sim.cost.base import CostModel
from paceline.sim.cost.engines import EngineTerms, of_release
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces.meta import ModelInfo
from paceline.traces.quantisation import quantised_weights
from paceline.traces.shapes import FORMATS, DecoderShape, Latent, Mixture, eagle3, experts_alone, head_of, presets
from paceline.traces.shapes_given import given_shapes

HELD = 700  # tokens of a context, if a source does not state it
DEVICES = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "H100": "h100-sxm"}
# Devices of the SpecForge rows, which name only the kind of device: those of the published command for the model
# (sgl-project/sgl-cookbook, docs/benchmarks/SpecBundle.md: --tp 4). One H200 is impossible: measured rounds of 8 x 4
# tokens take 9 to 14 ms, and reading the experts of that many tokens alone takes it 12 ms.
SPECFORGE = {"llama-3.1-8b": 1, "qwen-3-30b-a3b": 4}
MEMORY = 0.9  # share of memory that engines fill; rows beyond it wait for memory, and TPOT leaves that out
# Public threads that show one benchmark of one author (MT-Bench, one request, an H100), and so are one source.
ONE_BENCHMARK = dict.fromkeys(
    (f"github.com/vllm-project/vllm/pull/{number}" for number in (16035, 16937)), "vllm issue 20780"
)
COPIED = "ngram"  # in place of a drafter
MARGIN = 1.25  # a row that took this many times as long as one with at least as much work contradicts it


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure."""

    engine: str
    version: str
    device: str  # on the sheet
    num_devices: int
    target: ModelInfo
    drafter: ModelInfo | None = None
    num_rows: int  # requests that decode at a time
    held: float  # mean tokens of a row's context
    prompt: int = 0  # tokens of a prompt that is read between the tokens of others; 0: none
    answer: int = 1  # tokens of an answer
    drafted: int = 0  # tokens of a drafted chain, or steps of a tree; 0: the target alone
    judged: int = 0  # tokens that the target judges, without the newest
    wide: int = 1  # tokens per step of drafting
    copied: bool = False  # whether drafts are copied from the text, as prompt lookup does
    seconds: float  # per token (plain) or per round
    accepted: float = 1.0  # tokens that a round adds to the text
    plain_s: float = 0.0  # for a round: measured seconds of a token of the target alone there
    source: str  # its source
    note: str = ""  # its difference from others of its group
    contradicted: bool = False  # by others of its group, see `marked`; never by a prediction

    @property
    def kind(self) -> str:
        """The predicted quantity."""
        return "round" if self.drafted else "plain"

    @property
    def drafts_by(self) -> str:
        """What drafts: "head", "model" of several layers, or "copy" of the text; "" of a plain row."""
        if self.drafter is None:
            return "copy" if self.copied else ""
        return "head" if self.drafter.layers == 1 else "model"

    @property
    def drafter_name(self) -> str:
        """What drafts, by name; "" of a plain row."""
        return self.drafter.name if self.drafter is not None else COPIED if self.copied else ""

    @property
    def group(self) -> tuple[str, ...]:
        """The group of the row: engine, model, device, format and number of devices."""
        weights = "" if self.target.quantised is None else self.target.quantised.format
        split = "" if self.num_devices == 1 else f" x{self.num_devices}"
        return self.kind, self.engine, f"{self.target.name}{'@' if weights else ''}{weights}", f"{self.device}{split}"


Costs = Callable[[Row], CostModel]


def costs_of(terms: Callable[[Row], EngineTerms | None]) -> Costs:
    """The cost of each row's models on its device, by the terms of its engine; None means the bare roofline."""

    @cache
    def cost(engine: EngineTerms | None, device: str, num_devices: int, models: tuple[str, ...]) -> CostModel:
        return RooflineCost(
            device_sheet()[device], tuple(by_text[text] for text in models), engine=engine, tensor_parallel=num_devices
        )

    by_text: dict[str, ModelInfo] = {}

    def of(row: Row) -> CostModel:
        models = [row.target] if row.drafter is None else [row.drafter, row.target]
        texts = tuple(model.model_dump_json() for model in models)
        by_text.update(zip(texts, models, strict=True))
        return cost(terms(row), row.device, row.num_devices, texts)

    return of


def predicted_s(row: Row, cost: CostModel) -> float:
    """Predicted seconds of a token of a plain row, including the prompts of others, or of a round."""
    num_rows, held = row.num_rows, round(row.num_rows * row.held)
    target_s = cost.forward_s(
        row.target.name, num_rows=num_rows, new_tokens=num_rows * (1 + row.judged), context_tokens=held
    )
    if row.drafter is not None:
        step_s = cost.forward_s(
            row.drafter.name, num_rows=num_rows, new_tokens=num_rows * row.wide, context_tokens=held
        )
        return target_s + row.drafted * step_s
    if row.copied:
        return target_s + cost.lookups_s(num_rows)
    if not row.prompt:
        return target_s
    # A prompt is read in a step that writes tokens as well: its forward adds its excess over a step of one row.
    prompt_s = cost.forward_s(row.target.name, num_rows=1, new_tokens=row.prompt, context_tokens=0)
    waits = (num_rows - 1) / row.answer
    least_s = cost.forward_s(row.target.name, num_rows=1, new_tokens=1, context_tokens=0)
    return target_s + waits * max(0.0, prompt_s - least_s)


def plain_step_s(row: Row, cost: CostModel) -> float:
    """Predicted seconds of a step of the target alone for the same rows."""
    return cost.forward_s(
        row.target.name,
        num_rows=row.num_rows,
        new_tokens=row.num_rows,
        context_tokens=round(row.num_rows * row.held),
    )


class Predicted(NamedTuple):
    """A row with the predictions of a cost."""

    row: Row
    seconds: float
    plain_s: float  # of the target's own step for the same rows
    least_s: float  # of a round, without the engine's own time for it

    @property
    def error(self) -> float:
        """The relative error of seconds (plain) or of the speed-up (a round)."""
        if not self.row.drafted:
            return self.seconds / self.row.seconds - 1
        return (self.plain_s / self.seconds) / (self.row.plain_s / self.row.seconds) - 1

    @property
    def factor(self) -> float:
        """Measured over predicted: seconds of a token, or the engine's own seconds of a round."""
        if not self.row.drafted:
            return self.row.seconds / self.seconds
        needed_s = self.plain_s * self.row.seconds / self.row.plain_s
        return (needed_s - self.least_s) / (self.seconds - self.least_s)

    @property
    def speed_ups(self) -> tuple[float, float]:
        """The speed-ups of a round: (measured, predicted)."""
        return self.row.accepted * self.row.plain_s / self.row.seconds, self.row.accepted * self.plain_s / self.seconds


def predicted(rows: Iterable[Row], terms: Callable[[Row], EngineTerms | None]) -> list[Predicted]:
    """Rows as predicted by the terms of engines, or without terms by published peaks."""

    def without_rounds(row: Row) -> EngineTerms | None:
        engine = terms(row)
        return None if engine is None else engine.rounds_times(0.0)

    cost, least = costs_of(terms), costs_of(without_rounds)
    return [
        Predicted(row, predicted_s(row, cost(row)), plain_step_s(row, cost(row)), predicted_s(row, least(row)))
        for row in rows
    ]


def rows_in(folder: Path) -> list[Row]:
    """All rows to fit: typed ones, and those of the folder with known shapes and devices, and enough memory."""
    others = (*_specforge(folder / "specforge_fit.csv.gz"), *_of_one_thread(folder / "other_rows.csv"))
    return marked([*_plain_rows(folder / "silicon_fit.csv.gz"), *others, *_typed(kept=False)])


def marked(rows: Sequence[Row]) -> list[Row]:
    """The rows; plain ones that others of their group contradict are marked.

    Two rows contradict each other if one took `MARGIN` times as long or longer with no more requests, no more tokens
    held by each and no more prompt tokens read for each token written. In each group the rows with the most
    contradictions are taken out, repeatedly, until no contradiction is left.
    """
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.kind == "plain":
            groups[row.group].append(place)
    out: set[int] = set()
    for places in groups.values():
        against = {one: {other for other in places if _contradict(rows[one], rows[other])} for one in places}
        while most := max(map(len, against.values()), default=0):
            worst = {one for one, others in against.items() if len(others) == most}
            against = {one: others - worst for one, others in against.items() if one not in worst}
            out |= worst
    return [replace(row, contradicted=True) if place in out else row for place, row in enumerate(rows)]


def _contradict(one: Row, other: Row) -> bool:
    quick, slow = sorted((one, other), key=lambda row: row.seconds)
    has_as_much = all(more >= less for more, less in zip(_to_do(quick), _to_do(slow), strict=True))
    return has_as_much and slow.seconds >= MARGIN * quick.seconds


def _to_do(row: Row) -> tuple[float, ...]:
    """The work that makes a token slower: requests, tokens each holds, and prompt tokens per token written."""
    return row.num_rows, row.held, row.prompt / row.answer


def kept_rows() -> list[Row]:
    """Rows copied by hand from public sources, to which no term was fitted."""
    return list(_typed(kept=True))


def _typed(*, kept: bool) -> Iterator[Row]:
    """Rows of typed.csv, to judge by (`kept`) or to fit.

    A source that names its texts states seconds: it has a plain row for each, kept or not as its first row is. Of
    others only gains count: their tokens per second hold prompts, or are relative to those of the target alone.
    """
    told = set()
    for row in _read(Path(__file__).with_name("typed.csv")):
        num_rows, accepted = int(row["num_rows"]), float(row["accept_length"] or 1)
        plain_s, tokens_s = (
            float(row[f"{of}tpot_ms"] or 1e3 * num_rows / float(row[f"{of}tokens_per_s"] or "nan")) / 1e3
            for of in ("plain_", "")
        )
        of_text = f"{row['text']}, " if row["text"] else ""
        same = {
            "engine": _engine(row["engine"], row["version"]), "version": row["version"], "device": row["device"],
            "num_devices": int(row["num_devices"]), "target": _target(row["target"]), "num_rows": num_rows,
            "held": float(row["held"] or HELD), "source": ONE_BENCHMARK.get(row["source"], row["source"]),
        }  # fmt: skip
        key = row["source"], row["version"], row["device"], row["target"], row["text"], row["num_rows"]
        first, other = key not in told, (row["kept"] == "yes") != kept
        told.add(key)
        if of_text and first and not other:
            yield Row(**same, seconds=plain_s, note=f"{of_text}{num_rows} rows")
        if other or not row["drafter"]:
            continue
        copied = row["drafter"] == COPIED
        yield Row(
            **same,
            drafter=None if copied else _drafter(row["drafter"], row["target"].partition("@")[0]),
            copied=copied,
            drafted=int(row["steps"]),
            judged=int(row["judged"]),
            wide=int(row["topk"]),
            plain_s=plain_s,
            accepted=accepted,
            seconds=tokens_s * accepted,
            note=f"{of_text or row['drafter'] + ', '}{num_rows} rows, {row['steps']} steps, top-{row['topk']}",
        )


def _engine(name: str, version: str) -> str:
    """The engine's name in the table: first releases of vLLM's V1 took far longer for a round."""
    return of_release(name, version)


def _target(text: str) -> ModelInfo:
    """A preset model in a format, or one of `OTHERS`."""
    name = text.partition("@")[0]
    return OTHERS[text].info(text) if text in OTHERS else given_shapes([f"{name}={text}"], name)[0]


def _drafter(kind: str, target: str) -> ModelInfo:
    """A model, or a head for `target`; that of "eagle3-full" drafts all tokens of the vocabulary.

    For a mixture it is its own module ("mtp"), or has a dense layer, as the heads of Qwen3-30B-A3B have.
    """
    if kind in presets() or kind in OTHERS:
        return (presets().get(kind) or OTHERS[kind]).info(kind)
    shape = OTHERS.get(target) or presets()[target]
    if kind != "mtp":
        shape = replace(shape, mixture=None)
    if kind == "eagle3-full":
        return eagle3(shape, "eagle3", vocabulary=shape.vocabulary)
    head = head_of(kind, shape, kind)
    assert head is not None
    return head


def _read(path: Path) -> Iterable[dict[str, str]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return csv.DictReader(content.decode().splitlines())


def _plain_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of TTFT and TPOT by configuration: tensor parallel only, up to eight devices of one node."""
    for row in _read(path):
        split = int(row["tp_size"])
        alone = row["pp_size"] == "1" and row["attention_dp_size"] in ("", "1") and row["moe_ep_size"] in ("", "0", "1")
        target = _model(row["model_path"], row["gemm_quant_mode"])
        device = DEVICES.get(row["system"])
        if not alone or split > 8 or target is None or device is None:
            continue
        prompt, answer, in_flight = int(row["isl"]), int(row["osl"]), int(row["batch_size"])
        if _fits(target, device, split, in_flight * (prompt + answer)):
            seconds = float(row["silicon_tpot_ms"]) / 1e3
            yield Row(
                engine=_engine(row["backend"], row["backend_version"]),
                version=row["backend_version"],
                device=device,
                num_devices=split,
                target=target,
                num_rows=decoding(in_flight, float(row["silicon_ttft_ms"]) / 1e3, (answer - 1) * seconds),
                held=prompt + answer / 2,
                prompt=prompt,
                answer=answer,
                seconds=seconds,
                source="ai-dynamo/aiconfigurator",
                note=f"{prompt}+{answer}, {in_flight} requests",
            )


def decoding(in_flight: int, first_s: float, rest_s: float) -> int:
    """Mean number of requests in flight that decode (Little 1961): the others wait, or are being read.

    `first_s` is the mean time to a first token, `rest_s` the mean time from there to the last.
    """
    return max(1, round(in_flight * rest_s / (first_s + rest_s)))


def _fits(target: ModelInfo, device: str, split: int, tokens: int) -> bool:
    needed = (target.weights_bytes or 0) + target.kv_bytes_on(split) * tokens
    return needed <= MEMORY * device_sheet()[device].memory_bytes * split


def _specforge(path: Path) -> Iterator[Row]:
    """Rows of SGLang on H200 with EAGLE-3 drafters: a plain row per task and batch, and a round per setting."""
    plain: set[tuple[str, ...]] = set()
    for row in _read(path):
        preset = {"Llama-3.1-8B-Instruct": "llama-3.1-8b", "Qwen3-30B-A3B-Instruct-2507": "qwen-3-30b-a3b"}[
            row["model"]
        ]
        target, num_rows = presets()[preset].info(row["model"]), int(row["batch_size"])
        same = {
            "engine": "sglang", "version": "0.5", "device": "h200", "num_devices": SPECFORGE[preset], "target": target,
            "num_rows": num_rows, "held": HELD, "source": "sgl-project/SpecForge",
        }  # fmt: skip
        plain_s = num_rows / float(row["plain_tokens_per_s"])
        if (row["model"], row["batch_size"], row["task"]) not in plain:
            plain.add((row["model"], row["batch_size"], row["task"]))
            yield Row(**same, seconds=plain_s, note=f"{row['task']}, {num_rows} rows")
        accepted, steps, wide = float(row["accept_length"]), int(row["steps"]), int(row["topk"])
        yield Row(
            **same,
            drafter=_drafter("eagle3", preset),
            drafted=steps,
            judged=int(row["num_draft_tokens"]) - 1,
            wide=wide,
            accepted=accepted,
            plain_s=plain_s,
            seconds=num_rows * accepted / float(row["tokens_per_s"]),
            note=f"{row['task']}, {num_rows} rows, {steps} steps, top-{wide}",
        )


def _of_one_thread(path: Path) -> Iterator[Row]:
    """Rows of published figures, copied by hand: rounds of vLLM on one H100."""
    told = set()
    for row in _read(path):
        if row["engine"] != "vllm" or row["device"] not in DEVICES or not row["tpot_ms"] or not row["K"]:
            continue
        shape, length = presets()["llama-3.1-8b"], int(row["K"])
        same = {
            "engine": _engine("vllm", "0.9"), "version": "0.9", "device": DEVICES[row["device"]], "num_devices": 1,
            "target": shape.info(row["target"]), "num_rows": int(row["batch"]), "held": HELD, "source": row["source"],
        }  # fmt: skip
        plain_s = float(row["plain_tpot_ms"]) / 1e3
        if row["source"] not in told:
            told.add(row["source"])
            yield Row(**same, seconds=plain_s)
        accepted = float(row["accept_length"])
        yield Row(
            **same,
            drafter=_drafter(row["method"], "llama-3.1-8b"),
            drafted=length,
            judged=length,
            accepted=accepted,
            plain_s=plain_s,
            seconds=float(row["tpot_ms"]) / 1e3 * accepted,
            note=f"{row['method']}, {length} tokens",
        )


# Shapes without a preset, from their published configs.
_DEEPSEEK = DecoderShape(
    hidden=7168, layers=61, heads=128, kv_heads=128, head_size=1, intermediate=18_432, vocabulary=129_280,
    latent=Latent(queries=1536, state=512, plain=128, turned=64, values=128),
    mixture=Mixture(experts=256, per_token=8, intermediate=2048, shared=2048, dense_layers=3),
)  # fmt: skip
_KIMI = Mixture(experts=384, per_token=8, intermediate=2048, shared=2048, dense_layers=1)
OTHERS = {
    "MiniMax-M2.5": DecoderShape(
        hidden=3072, layers=62, heads=48, kv_heads=8, head_size=128, intermediate=1536, vocabulary=200_064,
        head_norms=48 + 8, mixture=Mixture(experts=256, per_token=8, intermediate=1536),
    ),
    "DeepSeek-R1": _DEEPSEEK,
    "DeepSeek-V3": _DEEPSEEK,
    # The feed-forward parts of both have two matrices of half as many columns again, in place of three.
    "apertus-1.5-8b": DecoderShape(
        hidden=4096, layers=32, heads=32, kv_heads=8, head_size=128, intermediate=14_336, vocabulary=131_072,
        head_norms=32 + 8,
    ),
    "apertus-1.5-70b": DecoderShape(
        hidden=8192, layers=80, heads=64, kv_heads=8, head_size=128, intermediate=28_672, vocabulary=131_072,
        head_norms=64 + 8,
    ),
    "glm-4.7-flash": DecoderShape(
        hidden=2048, layers=47, heads=20, kv_heads=20, head_size=1, intermediate=10_240, vocabulary=154_880,
        latent=Latent(queries=768, state=512, plain=192, turned=64, values=256),
        mixture=Mixture(
            experts=64, per_token=4, intermediate=1536, shared=1536, dense_layers=1, predicts=True
        ),
    ),
    "Kimi-K2.5": replace(_DEEPSEEK, heads=64, kv_heads=64, vocabulary=163_840, mixture=_KIMI),
}  # fmt: skip
_PRESETS = {
    "Qwen3-32B": "qwen-3-32b",
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen3-235B-A22B-FP8": "qwen-3-235b-a22b",
}
_FORMATS = {"": "", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4"}
_BLOCKS = 1 + 4 / 128**2  # bytes of a weight of published fp8 checkpoints: a scale of four for each block of 128 x 128


@cache
def _model(path: str, mode: str) -> ModelInfo | None:
    """The shape of a row's model, in its format of weights; None if unknown."""
    name, weights = path.rpartition("/")[2], _FORMATS[mode]
    if name in _PRESETS:
        (shape,) = given_shapes([f"{name}={_PRESETS[name]}{'@' if weights else ''}{weights}"], name)
        if name.endswith("-FP8") and shape.quantised is not None:
            blocks = shape.quantised.model_copy(update={"bytes_per_parameter": _BLOCKS})
            return shape.model_copy(update={"quantised": blocks})
        return shape
    if name == "gpt-oss-120b":  # its experts are in four bits, whatever the mode
        return presets()[name].info(name)
    decoder = OTHERS.get(name)
    if decoder is None:
        return None
    if not weights:
        return decoder.info(name)
    blocks = replace(FORMATS["fp8"], bytes_each=_BLOCKS)
    held = quantised_weights(decoder, blocks) if weights == "fp8" else experts_alone(decoder, weights)
    return replace(decoder, quantised=held).info(name)
