"""What a play is about: jobs, what became of them, and the log that counters are made of."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cluster.node.simulation.kv_pool import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as the engine sees it."""

    request: int
    due_s: float
    """When it comes; of one that waits for another, when it would have if that had not mattered."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens asked for, at least 1."""
    hash_ids: tuple[int, ...]
    after: int | None = None
    """The request whose end it waits for."""
    think_s: float = 0.0
    """From that end to its coming."""
    refusal: str | None = None
    """Why the server answers it with an error; None: it is served."""


@dataclass(slots=True, eq=False)
class Served:
    """One job in the engine, and what became of it."""

    job: Job
    place: int
    """Of its plan among all."""
    plan: NDArray[np.int64]
    """Cumulative output tokens after each chunk."""
    path: list[Span]
    shareable: int
    """Full blocks of its prompt that its hash ids cover."""
    own: Span | None = None
    """Its blocks past those, while it is preempted."""
    chunks: int = 0
    """Chunks of the plan emitted, or under way."""
    target: int = 0
    """Tokens that its prefill must compute: the prompt, and after a preemption what was generated too."""
    computed: int = 0
    held: int = 0
    """Leading blocks of `path` it holds."""
    private: int = 0
    """Other blocks it holds; while it decodes, those of its last prefill step."""
    decode_from: int = -1
    """First step of the decode stretch it is in; -1 while it prefills or stands by."""
    decode_end: int = -1
    """Step after its last."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """(first step, number of steps) of its emissions, a chunk a step."""
    first_scheduled_s: float = -1.0
    cached_tokens: int = 0
    finished_step: int = -1
    undrafted: list[int] = field(default_factory=list)
    """Chunks that a prefill after a preemption gave, in the plan's order: no draft was in them."""


@dataclass(slots=True)
class Log:
    """What the counters are made of. Times and amounts by step."""

    step_end_s: NDArray[np.float64]
    state: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(step, running, admitted less preempted, blocks in use less those of decoding requests), from that
    step on; the last entry of a step counts."""
    decode_blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    contexts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Summed over the requests that decode."""
    prefills: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    """(step, tokens, prompts ended, tokens read, query-key pairs) of steps with prefill in them."""
    prefilled: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, prompt tokens, of these computed) where a first prefill ended."""
    lookups: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, tokens looked up, tokens found)."""
    preempted: list[int] = field(default_factory=list)
    """Steps, one entry a preemption."""
    most_tokens: int = 0
    """Of the token budget, in any step."""
