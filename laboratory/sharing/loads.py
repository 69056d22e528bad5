"""The workloads of the experiment: generators' texts, at sizes that a replica serves in some minutes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload.

    Attributes:
        name: of its generator.
        text: as `open_workload` takes it, `{sessions}` in place of their number.
        sessions: of a run.
    """

    name: str
    text: str
    sessions: int

    def workload(self, limit: int | None) -> str:
        """The generator's text, of so many sessions at most."""
        return self.text.format(sessions=self.sessions if limit is None else min(self.sessions, limit))


_TOOLS = "steps=6,system=1024,prompt=200,output=geometric:60,observation=lognormal:250:0.5,wait=exponential:0.5"
LOADS = (
    Load(
        name="tree-rollouts",
        text="tree-rollouts:branch=4@0/2@32/2@64,prompt=lognormal:1000:0.5,output=128,sessions={sessions}",
        sessions=8,
    ),
    Load(
        name="persistent-agent",
        text=(
            "persistent-agent:turns=10,system=1024,prompt=lognormal:250:0.5,output=geometric:60,wait=exponential:0.5,"
            "sessions={sessions}"
        ),
        sessions=16,
    ),
    Load(
        name="shared-workers",
        text="shared-workers:workers=4,rounds=6,prompt=lognormal:1000:0.5,output=64,sessions={sessions}",
        sessions=6,
    ),
    Load(name="react", text=f"react:{_TOOLS},sessions={{sessions}}", sessions=20),
    Load(name="rewoo", text=f"rewoo:{_TOOLS},sessions={{sessions}}", sessions=20),
)
# Groups of answers to long prompts, as many at a time as memory lets in.
CROWD = Load(
    name="groups of 16 rollouts",
    text="tree-rollouts:branch=16@0,prompt=lognormal:4000:0.2,output=96,sessions={sessions}",
    sessions=6,
)
