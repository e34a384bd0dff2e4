"""Ask and tell: which config next, told what the last ones were worth. The only home of Optuna.

A config is proposed first and becomes a trial second, with all its parameters in one insert, so that nothing
invalid or half-made is ever a trial and numbers have no gaps.

    recipes    the samplers by name
    proposer   what a sampler draws, made to obey the space: valid, new, and away from what was refused
    search     the study in its database: ask, tell, put right what a killed driver left
"""

from tuner.sampler.guidance import Foresight, Guidance, Predict
from tuner.sampler.proposer import SpaceExhausted
from tuner.sampler.recipes import SAMPLERS, SamplerError, sampler_named
from tuner.sampler.search import Proposal, Scored, Search, Unscored, Verdict

__all__ = [
    "SAMPLERS",
    "Foresight",
    "Guidance",
    "Predict",
    "Proposal",
    "SamplerError",
    "Scored",
    "Search",
    "SpaceExhausted",
    "Unscored",
    "Verdict",
    "sampler_named",
]
