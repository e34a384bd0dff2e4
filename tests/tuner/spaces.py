"""Small spaces that the tests of this house search, made without files."""

import dataclasses

from search_spaces.constraints import Constraint, Scope, parse
from search_spaces.parameters import Categorical, Choice, Integer, Parameter, Real
from search_spaces.space import Space

SCHEME = Categorical(path="scheme", key="scheme", choices=("bf16", "int8", "fp8"), argument="quantization")
SPECULATION = Categorical(
    path="speculation",
    key="speculation",
    choices=(
        Choice(name="off"),
        Choice(
            name="ngram",
            set={"speculative_config": {"method": "ngram"}},
            parameters=(
                Integer(
                    path="speculation.depth",
                    key="speculation.ngram.depth",
                    low=1,
                    high=6,
                    argument="speculative_config.num_speculative_tokens",
                ),
            ),
        ),
    ),
)
SEQUENCES = Integer(
    path="max_num_seqs", key="max_num_seqs", low=4, high=64, step=4, log=True, argument="max_num_seqs"
)
TOKENS = Integer(
    path="max_num_batched_tokens",
    key="max_num_batched_tokens",
    low=128,
    high=1024,
    step=128,
    argument="max_num_batched_tokens",
)
MEMORY = Real(
    path="gpu_memory_utilization",
    key="gpu_memory_utilization",
    low=0.8,
    high=0.95,
    step=0.05,
    argument="gpu_memory_utilization",
)
ROOM = "max_num_batched_tokens >= max_num_seqs * (1 + speculation.depth)"


def space_of(*parameters: Parameter, constraints: tuple[str, ...] = ()) -> Space:
    return Space(
        name="small",
        source="small.yaml",
        model="some/model",
        parameters=parameters,
        constraints=_parsed(parameters, constraints),
    )


def _parsed(parameters: tuple[Parameter, ...], texts: tuple[str, ...]) -> tuple[Constraint, ...]:
    scope = Scope.of(parameters, {})
    return tuple(parse(text, scope) for text in texts)


SMALL = space_of(SCHEME, SPECULATION, SEQUENCES, TOKENS, MEMORY, constraints=(ROOM,))
"""Conditions, a constraint, a log scale with steps, a real number with steps."""

TINY = space_of(dataclasses.replace(SCHEME, choices=("bf16", "int8")), SPECULATION)
"""2 · (1 + 6) = 14 configs."""
