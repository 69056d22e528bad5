"""A plain step-by-step engine for the target alone, without a prefix cache: what the real one must equal."""

from collections import deque

from paceline.sim.serving.charges import to_ps
from paceline.sim.serving.limits import Preemption

from .served_runs import LineCost, Run, target_only


class Request:
    """One request: `read` tokens of its text are in the cache, `out` tokens have come out.

    It holds blocks for `held` units of its text, in layers with a window without the first `left` of them.
    """

    def __init__(self, arrival):
        self.arrival = arrival
        self.read = self.out = self.held = self.left = 0
        self.decodes = False
        self.scheduled = self.first = self.ended = -1

    @property
    def text(self):
        return self.arrival.prompt_tokens + self.out


def serve_plainly(arrivals, limits, forward_ps, *, retracts=False):
    """Times (scheduled, first token, ended) by id, and who was put back when; -1 where it never came to it.

    With `retracts` memory is looked at once, for all who decode, as SGLang does: the budget must have room for them.
    """
    (kv,) = limits.kv.values()
    requests = [Request(arrival) for arrival in arrivals]
    coming, waiting, running, put_back = deque(requests), deque(), [], []
    now = 0
    free = kv.num_blocks
    near = kv.window.near if kv.window else 0

    def lacks(request, tokens):
        most = request.arrival.prompt_tokens + request.arrival.output_tokens
        return max(-(-min(tokens, most) // kv.block_tokens) - request.held, 0) * kv.groups

    def release(request):
        nonlocal free
        running.remove(request)
        free += request.held * kv.groups - request.left * near
        request.read = request.held = request.left = request.decodes = 0
        waiting.insert(len(waiting) if retracts else 0, request)
        put_back.append((request.arrival.request_id, now))

    def hold(request, tokens):
        nonlocal free
        while (more := lacks(request, tokens)) > free:
            release(request if retracts else running[-1])
            if request not in running:
                return False
        free -= more
        request.held += more // kv.groups
        return True

    def leave_window(request):
        nonlocal free
        if near:
            left = max(request.read - kv.window.tokens + 1, 0) // kv.block_tokens
            free += near * (left - request.left)
            request.left = left

    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival.arrives_ps)
        while coming and coming[0].arrival.arrives_ps <= now:
            request = coming.popleft()
            if request.arrival.prompt_tokens + request.arrival.output_tokens > kv.longest_text:
                request.ended = request.arrival.arrives_ps
            else:
                waiting.append(request)
        left, step, before = limits.token_budget, [], len(put_back)
        while retracts and sum(lacks(one, one.text + 1) for one in running if one.decodes) > free:
            decoding = [(one.out, -one.arrival.prompt_tokens, -n, one) for n, one in enumerate(running) if one.decodes]
            release(min(decoding)[3] if len(decoding) > 1 else next(one for one in running if not one.decodes))
        for request in [one for one in running if one.decodes]:
            if left and request in running and hold(request, request.text + 1):
                step.append((request, 1))
                left -= 1
        for request in [one for one in running if not one.decodes]:
            tokens = min(request.text - request.read, left)
            upto = request.read + tokens
            if tokens and request in running and hold(request, upto + (upto == request.text)):
                step.append((request, tokens))
                left -= tokens
        while waiting and left and len(running) < limits.max_num_seqs and len(put_back) == before:
            request = waiting[0]
            tokens = min(request.text, left)
            if lacks(request, tokens + (tokens == request.text)) > free:
                break
            running.append(waiting.popleft())
            hold(request, tokens + (tokens == request.text))
            request.scheduled = now if request.scheduled < 0 else request.scheduled
            step.append((request, tokens))
            left -= tokens
        if not step:
            continue
        now += forward_ps(len(step), sum(tokens for _, tokens in step), sum(one.read for one, _ in step))
        for request, tokens in step:
            request.read += tokens
            leave_window(request)
            if request.read == request.text:
                request.decodes = True
                request.out += 1
                request.first = now if request.first < 0 else request.first
            if request.out == request.arrival.output_tokens:
                request.ended = now
                free += request.held * kv.groups - request.left * near
                running.remove(request)
    return {one.arrival.request_id: (one.scheduled, one.first, one.ended) for one in requests}, put_back


def preempted(log):
    """Who was put back, and when."""
    columns = (log.preemptions[name].tolist() for name in ("request", "at_ps"))
    return [(log.requests["request_id"][request], at_ps) for request, at_ps in zip(*columns, strict=True)]


def serves_plainly(arrivals, limits):
    """The engine equals the plain one; returns who was put back, and when."""
    cost = LineCost(target_only())

    def forward_ps(num_rows, new_tokens, context_tokens):
        return to_ps(cost.forward_s("target", num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens))

    retracts = limits.preemption is Preemption.fewest_tokens
    times, put_back = serve_plainly(arrivals, limits, forward_ps, retracts=retracts)
    run = Run(arrivals, target_only(), "target", limits, cost=cost).go()
    assert run.times() == times
    assert preempted(run.log) == put_back
    return put_back
