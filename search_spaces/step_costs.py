"""What steps of continuous batching take, of many configs at once: lines in what is in the batch.

A forward pass takes the slower of memory and compute (`search_spaces.roofline`), and both grow evenly with
the sequences that decode and the prompt tokens beside them. So a step of a thousand configs is a few
operations on arrays of coefficients, worked out once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from search_spaces.accelerators import Accelerator
from search_spaces.deployment import Deployment
from search_spaces.roofline import ForwardPass

Array = NDArray[np.float64]


class Costs:
    """The coefficients of many deployments, as arrays of one number each."""

    def __init__(self, deployments: Sequence[Deployment], device: Accelerator) -> None:
        self._target = _Passes([d.target for d in deployments])
        # Where there is none it counts zero times.
        self._draft = _Passes([d.draft or d.target for d in deployments])
        depth = np.array([d.depth for d in deployments], dtype=np.float64)
        self._drafts = np.array([d.draft is not None for d in deployments], dtype=np.float64) * depth
        found = np.array([d.drafted.found for d in deployments])
        self.queries = 1 + depth * found
        self.tokens = np.array([d.drafted.tokens(d.depth) for d in deployments])
        self.seqs = np.array([d.max_num_seqs for d in deployments], dtype=np.float64)
        self.budget = np.array([d.max_num_batched_tokens for d in deployments], dtype=np.float64)
        self.cached = np.array([d.prefix_caching for d in deployments], dtype=np.float64)
        self.kv_tokens = np.array([d.kv_tokens for d in deployments])
        self._device = device
        self.pace = np.ones(len(deployments))
        """Traffic so many times as fast is the same as steps so many times as long."""

    def steps(self, context: float, before: Array | float) -> "Steps":
        """Durations of steps.

        Args:
            context: mean tokens of a decoding sequence.
            before: mean tokens before each of a prompt chunk's.
        """
        device, queries, drafts = self._device, self.queries, self._drafts
        one, nothing = np.ones(len(self.seqs)), np.zeros(len(self.seqs))
        beside = before * one
        rows = [self._target.lines(queries, context, one, beside, device.step_s, device.sequence_s)]
        if drafts.any():
            first = self._draft.lines(queries, context, one, beside, device.draft_step_s, 0.0)
            later = self._draft.lines(one, context, nothing, nothing, device.draft_step_s, 0.0)
            rows += [first.times(np.minimum(drafts, 1.0)), later.times(np.maximum(drafts - 1, 0.0))]
        return Steps([row.times(self.pace) for row in rows])


@dataclass(frozen=True, slots=True)
class _Lines:
    """Passes of n deployments: the slower of memory and compute, each a line in the batch."""

    fixed: Array
    """(2, n) seconds of memory and of compute, whatever the batch."""
    sequence: Array
    """(2, n) seconds that each decoding sequence adds."""
    chunk: Array
    """(2, n) seconds that each prompt token adds."""
    experts: Array
    """(n,) seconds in which all routed experts are read."""
    missed: Array
    """(n,) the chance that a token does not choose an expert."""
    tokens: Array
    """(2, n) tokens of a decoding sequence, and of each prompt token, that choose experts."""

    def times(self, factor: Array) -> "_Lines":
        """As many passes one after another, (n,)."""
        return replace(
            self,
            fixed=self.fixed * factor,
            sequence=self.sequence * factor,
            chunk=self.chunk * factor,
            experts=self.experts * factor,
        )


class _Passes:
    """Forward passes' coefficients, as arrays."""

    def __init__(self, passes: Sequence[ForwardPass]) -> None:
        distinct = {id(p): p for p in passes}
        places = {key: i for i, key in enumerate(distinct)}
        index = np.array([places[id(p)] for p in passes])
        self._of = {
            field.name: np.array([float(getattr(p, field.name)) for p in distinct.values()])[index]
            for field in fields(ForwardPass)
        }

    def lines(
        self,
        queries: Array,
        context: float,
        prompts: Array,
        before: Array,
        fixed_s: float,
        sequence_s: float,
    ) -> _Lines:
        """One pass that processes and samples `queries` tokens a decoding sequence, beside `prompts` tokens
        for each prompt token of the step, with `before` tokens before it: (n,) each."""
        of, bandwidth, compute = self._of, self._of["bandwidth"], self._of["compute"]
        fixed = fixed_s + of["fixed_link_s"]
        link = of["token_link_s"]
        moved = queries * of["token_bytes"] + context * of["kv_bytes"]
        worked = queries * (of["token_flops"] + of["sampled_flops"] + context * of["pair_flops"])
        worked_chunk = prompts * (of["token_flops"] + before * of["pair_flops"])
        each = queries * link + sequence_s
        return _Lines(
            fixed=np.stack([fixed + of["dense_bytes"] / bandwidth, fixed]),
            sequence=np.stack([each + moved / bandwidth, each + worked / compute]),
            chunk=np.stack(
                [prompts * (link + of["token_bytes"] / bandwidth), prompts * link + worked_chunk / compute]
            ),
            experts=of["expert_bytes"] / bandwidth,
            missed=1 - of["experts_per_token"] / of["experts"],
            tokens=np.stack([queries, prompts]),
        )


class Steps:
    """Durations of the steps of n deployments: of some passes, one after another."""

    def __init__(self, passes: Sequence[_Lines]) -> None:
        # (2, passes, n): few operations on large arrays.
        self._fixed = np.stack([one.fixed for one in passes], axis=1)
        self._sequence = np.stack([one.sequence for one in passes], axis=1)
        self._chunk = np.stack([one.chunk for one in passes], axis=1)
        self._experts = np.stack([one.experts for one in passes])
        self._missed = np.stack([one.missed for one in passes])
        self._tokens = np.stack([one.tokens for one in passes], axis=1)
        self._routed = bool(self._experts.any())

    def seconds(self, decoding: Array, chunk: Array) -> tuple[Array, Array]:
        """(n,) each, of a step of `decoding` sequences: without a prompt, and with `chunk` tokens of one."""
        alone = self._fixed + self._sequence * decoding
        mixed = alone + self._chunk * chunk
        if self._routed:
            tokens = self._tokens[0] * decoding
            alone[0] += self._experts * (1 - self._missed**tokens)
            mixed[0] += self._experts * (1 - self._missed ** (tokens + self._tokens[1] * chunk))
        return _slower(alone), _slower(mixed)


def _slower(passes: Array) -> Array:
    """(n,) the sum over passes, (2, passes, n), of the slower of memory and compute."""
    slower = np.maximum(passes[0], passes[1])
    summed: Array = slower.sum(axis=0) if len(slower) > 1 else slower[0]
    return summed
