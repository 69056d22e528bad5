"""The run that docs/serving-metrics.md works out by hand: four requests, one replica, six seconds."""

from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import ServingAbout
from paceline.traces.workloads.arrival import Arrival

S = 10**12
ABOUT = ServingAbout(policy="draft:2/target", workload="four requests", cluster="one replica")


def worked_log(about=ABOUT):
    recorder = ServingRecorder(["draft", "target"], {"r0": [None, 8]})
    recorder.arrived(Arrival("a", 0, 10, 4), 0)
    recorder.arrived(Arrival("b", 3 * S // 2, 20, 2), 0)
    recorder.arrived(Arrival("c", 2 * S, 999, 1), 0)
    recorder.arrived(Arrival("d", 3 * S, 40, 8), 0)
    recorder.scheduled(0, 0, [0, 0])
    recorder.first_token(0, 2 * S)
    recorder.finished(0, 9 * S // 2)
    recorder.scheduled(1, 2 * S, [0, 0])
    recorder.first_token(1, 3 * S)
    recorder.finished(1, 9 * S // 2)
    recorder.rejected(2, 2 * S, "longer than the memory")
    recorder.scheduled(3, 9 * S // 2, [0, 16])
    recorder.first_token(3, 5 * S)
    recorder.emitted(3, 2)
    recorder.stopped(6 * S, "horizon")
    recorder.gaps(S, 0, 1, 1)  # a
    recorder.gaps(3 * S // 2, 0, 1, 2)  # a and b
    recorder.gaps(S, 0, 1, 1)  # d
    recorder.judged(1, drafted=2, accepted=1, own=1, rows=1)  # a
    recorder.judged(1, drafted=1, accepted=1, own=1, rows=2)  # a and b
    recorder.judged(1, drafted=2, accepted=0, own=1, rows=1)  # d
    for at, running, waiting, blocks in [(0, 1, 0, 1), (3, 1, 1, 1), (4, 2, 0, 3), (6, 2, 1, 3), (9, 1, 0, 3)]:
        recorder.state(0, at * S // 2, running, waiting, [0, blocks])
    recorder.busy(0, 0, 9 * S // 10, forwards=5)
    recorder.busy(0, 1, 5 * S, forwards=5)
    recorder.looked_up(0, 1, asked=(3, 70), found=(1, 16))
    return recorder.log(about)
