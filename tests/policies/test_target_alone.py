"""Which policies say that they run the target alone, or that pending tokens decide, and whom that binds."""

from paceline.policies.about import About, decides_by_pending, runs_target_alone
from paceline.policies.by_name import make_policy
from paceline.policies.fixed import Chain, Confident, Plain

from ..sim.serving.engine.served_runs import pico


def test_the_target_alone_says_so():
    pool = pico().pool
    assert runs_target_alone(make_policy("target", pool))
    assert runs_target_alone(make_policy("plain", pool))
    for other in ("draft:4/target", "adaptive", "confident", "ngram:3/target"):
        assert not runs_target_alone(make_policy(other, pool))


def test_what_a_class_says_does_not_bind_one_that_decides_otherwise():
    pool = pico().pool

    class Looks(Plain):
        def decide(self, seen):
            return super().decide(seen)

    class Learns(Chain):
        def learn(self, outcome):
            pass

    class Renamed(Plain):
        """Decides as before."""

    class Says(Looks):
        about = About(lossless=True, target_alone=True)

    assert not runs_target_alone(Looks(pool))
    assert not runs_target_alone(Learns(pool, "target"))
    assert runs_target_alone(Renamed(pool))
    assert runs_target_alone(Says(pool))
    assert not runs_target_alone(object())
    plain = Plain(pool)
    plain.decide = Plain(pool).decide
    assert not runs_target_alone(plain)


def test_fixed_policies_say_that_pending_tokens_decide():
    pool = pico().pool
    for fixed in (
        "target",
        "plain",
        "draft:4/target",
        "draft:3/mid:6/target",
        "confident",
        "svip",
        "hispec",
        "chain,spec=draft:2/target",
    ):
        assert decides_by_pending(make_policy(fixed, pool))
    for other in (
        "adaptive",
        "two-level",
        "adaedl",
        "goodput",
        "off-under-load",
        "cas-spec",
        "consensus",
        "per-tag,default=plain",
    ):
        assert not decides_by_pending(make_policy(other, pool))


def test_any_method_may_decide_otherwise():
    pool = pico().pool

    class Blocks(Confident):
        def block(self, seen):
            return super().block(seen)

    class Options(Confident):
        def __init__(self, pool):
            super().__init__(pool, most=2)

    class Windows(Confident):
        @property
        def _draft(self):
            return self.drafts.pop()

        @_draft.setter
        def _draft(self, draft):
            self.drafts = [draft]

    assert not decides_by_pending(Blocks(pool))
    assert not decides_by_pending(Windows(pool))
    assert decides_by_pending(Options(pool))
    patched = Confident(pool)
    patched.judge = Confident(pool).judge
    assert not decides_by_pending(patched)
