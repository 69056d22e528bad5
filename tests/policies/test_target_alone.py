"""Which policies say that they run the target alone, and whom that binds."""

from paceline.policies.about import About, runs_target_alone
from paceline.policies.lossless.chain import Chain
from paceline.policies.lossless.plain import Plain
from paceline.policies.spec import make_policy

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
