"""The same on a GPU: real CUDA graphs in place of functions that are called."""

import copy

import pytest
import torch
from paceline.policies import ConfidenceBelow
from paceline.policies.fixed import Chain
from paceline.runtime.clock import Clock
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.static_memory import CudaGraphs

from ..forward.test_forward import RELATIVE, worst_difference
from ..offline import COUPLED, GREEDY, Offline, with_models
from ..tiny_decoders import CONTEXT, FAMILIES, MODULES_ONLY, remembered, tiny_decoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def pool(tiny_pool):
    models = {
        member.name: copy.deepcopy(member.model).double().cuda()
        for member in tiny_pool.members
        if member.model is not None
    }
    return with_models(tiny_pool, **models)


def graphs_of(model):
    return choose_forward(model, kind="graphs", share_weights=False, context_tokens=CONTEXT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [*FAMILIES, *MODULES_ONLY])
def test_ragged_batches_on_a_gpu(family, dtype):
    model = tiny_decoder(family, dtype).cuda()
    forward = graphs_of(model)
    assert forward.store.reasons == []
    tolerance = RELATIVE.get(dtype, 0.05)
    assert worst_difference(remembered(model), forward, forward.slot_cache()) < tolerance


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=("greedy", "coupled"))
@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("policy", ["plain", "draft:4/target", "draft:2/mid:5/target", "draft:1/mid:2/slim:4/target"])
def test_text_and_steps_are_those_of_the_modules(pool, policy, batch, sampling):
    modules = Offline(pool, policy, forward="modules", sampling=sampling).run(batch=batch)
    graphs = Offline(pool, policy, forward="graphs", sampling=sampling).run(batch=batch)
    assert graphs.texts == modules.texts
    for name in ("level", "kind", "num_rows", "num_forwards", "new_tokens"):
        assert graphs.log.ops[name].tolist() == modules.log.ops[name].tolist()


def test_stop_rules(pool):
    def policy():
        return Chain(loaded_pool(pool), "draft:6/target", stop=ConfidenceBelow(0.5))

    assert Offline(pool, policy(), forward="graphs").run(batch=3).texts == (
        Offline(pool, policy(), forward="modules").run(batch=3).texts
    )


def test_graphs_share_memory_and_say_how_much():
    capture = CudaGraphs(torch.device("cuda"))
    buffer = torch.zeros(1024, device="cuda")
    double = capture.capture(lambda: (buffer * 2,))
    square = capture.capture(lambda: (buffer * buffer,))
    buffer.fill_(3.0)
    (doubled,) = double()
    assert float(doubled.sum()) == 6.0 * 1024
    (squared,) = square()
    assert float(squared.sum()) == 9.0 * 1024
    assert capture.used_bytes() > 0
    assert capture.free_bytes() > 0


def test_what_waits_for_the_device_cannot_be_captured():
    capture = CudaGraphs(torch.device("cuda"))
    buffer = torch.zeros(8, device="cuda")
    with pytest.raises(RuntimeError):
        capture.capture(lambda: (buffer * float(buffer.sum()),))
    (sums,) = capture.capture(lambda: (buffer + 1,))()  # the device is none the worse for it
    assert float(sums.sum()) == 8.0


def test_auto_takes_what_is_quicker_and_says_so(pool):
    names = set(Offline(pool, "draft:2/target").world.forward_names.values())
    assert names <= {"graphs", "fused", "modules"}


def test_a_step_waits_for_the_device_once(pool, monkeypatch):
    """Beside the clock, which the log's seconds need."""
    run = Offline(pool, "draft:4/target", forward="graphs", debug=False)
    run.run()
    monkeypatch.setattr(Clock, "now_s", lambda self: 0.0)
    reads = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(self.device.type) or to_list(self))
    again = Offline(pool, "draft:4/target", forward="graphs", debug=False).run()
    assert reads.count("cuda") <= len(again.log.ops["level"]) + 2 * 4 * len(
        again.sessions
    )  # long prompts' first drafts
