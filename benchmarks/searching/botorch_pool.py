"""BoTorch's qLogNEHVI over a pool of valid configs, with our filter of refused choices and no prior.

BoTorch is no dependency of the project: install it beside it for this arm alone.

Source: S. Ament and others, "Unexpected improvements to expected improvement for Bayesian optimization",
NeurIPS 2023.
"""

import warnings

import numpy as np
import torch
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.mlls import SumMarginalLogLikelihood

from benchmarks.searching.evaluation import Crash, Evaluation, Worth
from benchmarks.searching.scenarios import Loaded
from search_spaces.parameters import Categorical, active, every
from search_spaces.space import Config, Space
from tuner.refusals import Picks, refusals
from tuner.sampler import SpaceExhausted

_STARTUP = 8
_POOL = 1000
"""Valid configs drawn for each proposal."""
_BATCH = 250
_TINY = 1e-6


class BoTorchPool:
    """Ask and tell. The first configs are drawn by chance."""

    def __init__(self, loaded: Loaded, seed: int) -> None:
        self._space, self._seed = loaded.space, seed
        self._asked: dict[int, Config] = {}
        self._worths: dict[int, Worth] = {}
        self._crashes: dict[int, Crash] = {}

    def control(self, worth: Evaluation) -> None:
        """It is no point of the space."""

    def ask(self) -> tuple[int, Config]:
        number = len(self._asked) + 1  # 0 is the control
        pool = self._pool(np.random.default_rng([self._seed, number]))
        if not pool:
            raise SpaceExhausted("nothing new is drawn")
        met = len(self._worths) >= _STARTUP
        config = pool[self._best(pool, number)] if met else pool[0]
        self._asked[number] = config
        return number, config

    def tell(self, number: int, worth: Evaluation) -> None:
        if isinstance(worth, Worth):
            self._worths[number] = worth
        else:
            self._crashes[number] = worth

    def recommended(self) -> tuple[Config, ...] | None:
        return None

    def _pool(self, rng: np.random.Generator) -> list[Config]:
        served = [choices(self._space, self._asked[number]) for number in self._worths]
        refused = [(choices(self._space, self._asked[n]), crash.cause) for n, crash in self._crashes.items()]
        known = refusals(served, refused)
        taken = set(self._asked.values())
        drawn = dict.fromkeys(self._space.sample(rng) for _ in range(_POOL))
        return [c for c in drawn if c not in taken and not known.forbid(choices(self._space, c))]

    def _best(self, pool: list[Config], number: int) -> int:
        """Index of the largest acquisition, with what is under way as pending."""
        torch.manual_seed(self._seed * 1_000 + number)
        measured = [(self._asked[n], worth) for n, worth in self._worths.items()]
        x = torch.tensor(np.array([encoded(self._space, config) for config, _ in measured]))
        y = torch.tensor([_outcomes(worth) for _, worth in measured], dtype=torch.float64)
        models = [SingleTaskGP(x, y[:, [i]], outcome_transform=Standardize(1)) for i in range(y.shape[1])]
        model = ModelListGP(*models)
        under_way = [c for n, c in self._asked.items() if n not in self._worths and n not in self._crashes]
        pending = [encoded(self._space, config) for config in under_way]
        met = y[:, 2] >= 0
        known = y[met] if met.any() else y
        worst = known[:, :2].min(dim=0).values - 0.1 * (
            known[:, :2].max(dim=0).values - known[:, :2].min(dim=0).values
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
            acquisition = qLogNoisyExpectedHypervolumeImprovement(
                model=model,
                ref_point=worst.tolist(),
                X_baseline=x,
                objective=IdentityMCMultiOutputObjective(outcomes=[0, 1]),
                constraints=[lambda outcomes: -outcomes[..., 2]],
                X_pending=torch.tensor(np.array(pending)) if pending else None,
                prune_baseline=True,
            )
            candidates = torch.tensor(np.array([encoded(self._space, config) for config in pool]))
            with torch.no_grad():
                values = torch.cat([acquisition(part.unsqueeze(1)) for part in candidates.split(_BATCH)])
        return int(values.argmax())


def _outcomes(worth: Worth) -> list[float]:
    """To maximise: log goodput, -log TPOT; and what must not be negative."""
    goodput, tpot = -worth.losses[0], worth.losses[1]
    return [float(np.log(max(goodput, _TINY))), -float(np.log(tpot)), -worth.violation]


def choices(space: Space, config: Config) -> Picks:
    """What the config chose where there was a choice."""
    taken = active(space.parameters, config.values)
    return frozenset((p.key, v) for p, v in taken if isinstance(p, Categorical) and p.size > 1)


def encoded(space: Space, config: Config) -> list[float]:
    """One number of 0 to 1 for each parameter, one for each choice; 0.5 where it is not active."""
    held = {p.key: v for p, v in active(space.parameters, config.values)}
    row: list[float] = []
    for parameter in every(space.parameters):
        value = held.get(parameter.key)
        if isinstance(parameter, Categorical):
            row += [float(parameter.key in held and value == other) for other in parameter.values]
        elif not isinstance(value, int | float):
            row.append(0.5)
        else:
            scale = np.log if parameter.log else float
            low, high = scale(parameter.low), scale(parameter.high)
            row.append(float((scale(value) - low) / (high - low)))
    return row
