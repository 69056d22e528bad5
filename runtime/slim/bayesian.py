"""The one door to optuna: points of a box that promise a low value, learned from the values of those before.

Tree-structured Parzen estimators (Bergstra et al. 2011, NeurIPS 24): one density of each coordinate is fitted to the
best points and one to all others, and of a few draws from the first the one of the largest ratio comes next.
"""

from collections.abc import Sequence
from types import ModuleType

from ...installing import install_hint


class BayesianProposals:
    """Points `[n]` of the unit box.

    Args:
        num_keys: n.
        seed: of what is drawn.

    Raises:
        ModuleNotFoundError: the extra `search` is not installed; the message says how.
    """

    def __init__(self, num_keys: int, *, seed: int) -> None:
        optuna = load_optuna()
        self._names = [str(number) for number in range(num_keys)]
        self._space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in self._names}
        # Each coordinate on its own: the joint density repeats itself far more often on so few points.
        sampler = optuna.samplers.TPESampler(n_startup_trials=0, multivariate=False, seed=seed)
        self._study = optuna.create_study(sampler=sampler)
        self._make_trial = optuna.trial.create_trial
        self._unused = optuna.trial.TrialState.FAIL

    def learn(self, keys: Sequence[float], value: float) -> None:
        """Take note of what a point is worth; less is better."""
        point = dict(zip(self._names, keys, strict=True))
        self._study.add_trial(self._make_trial(params=point, distributions=self._space, value=value))

    def propose(self) -> list[float]:
        """The next point `[n]`; its value is not noted before `learn`."""
        trial = self._study.ask(self._space)
        self._study.tell(trial, state=self._unused)
        return [trial.params[name] for name in self._names]


def load_optuna() -> ModuleType:
    """The library, told to be quiet; raises ModuleNotFoundError if the extra `search` is not installed."""
    try:
        import optuna  # noqa: PLC0415 - an optional dependency at its one door
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Bayesian search needs {error.name}: {install_hint('search')}, or make every trial a random one"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
