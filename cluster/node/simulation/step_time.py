"""How long a step of the engine takes: the target's pass, the draft's passes, and the engine's own time."""

import numpy as np
from numpy.typing import NDArray

from cluster.node.simulation.settings import Settings
from search_spaces.roofline import chunk_pairs, forward_pass
from search_spaces.step_model import sustained

_Array = NDArray[np.float64]


class PrefillWork:
    """The prefill side of one step: chunks of prompts, summed."""

    __slots__ = ("finishing", "pairs", "read", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens = self.sequences = self.finishing = 0
        self.read = self.pairs = 0.0

    def add(self, before: int, chunk: int, *, finishes: bool) -> None:
        """A chunk of `chunk` tokens after `before` computed ones; `finishes` if it ends its prompt."""
        self.tokens += chunk
        self.sequences += 1
        self.finishing += finishes
        self.read += before + chunk
        self.pairs += chunk_pairs(before, chunk)


class StepTime:
    """Step durations in seconds, and the work in them, of one config."""

    def __init__(self, settings: Settings) -> None:
        constants, drafting = settings.constants, settings.drafting
        passed = forward_pass(
            settings.shape,
            settings.scheme,
            settings.accelerator,
            dtype=settings.dtype,
            kv_dtype=settings.kv_dtype,
            tensor_parallel=settings.tensor_parallel,
        )
        self._target = sustained(passed, settings.scheme, constants)
        self._draft = drafting.draft if drafting and drafting.depth else None
        self._depth = drafting.depth if drafting else 0
        found = drafting.acceptance.found if drafting else 0.0
        self._queries = 1 + self._depth * found
        """Mean tokens verified per sequence: where lookup finds no draft, only one is computed."""
        self._step_s, self._sequence_s = constants.step_s, constants.sequence_s
        self._draft_step_s = constants.draft_step_s
        if drafting and drafting.method == "ngram":
            self._step_s += constants.lookup_step_s
            self._sequence_s += constants.lookup_s

    def mixed_s(self, decoding: int, context: float, prefill: PrefillWork) -> float:
        """One step with prefill in it, or none.

        Args:
            decoding: sequences that decode.
            context: their summed context in tokens.
        """
        verified = decoding * self._queries
        duration = self._target.seconds(
            tokens=verified + prefill.tokens,
            sampled=verified + prefill.finishing,
            read=context + prefill.read,
            pairs=context * self._queries + prefill.pairs,
        )
        duration += self._step_s + (decoding + prefill.sequences) * self._sequence_s
        if self._draft is not None:
            # The first draft pass takes in what the target just computed, prompts included; the others
            # have one token a sequence.
            drafting = decoding + prefill.finishing
            first = self._draft.seconds(
                tokens=verified + prefill.tokens,
                sampled=verified + prefill.finishing,
                read=context + prefill.read,
                pairs=context * self._queries + prefill.pairs,
            )
            later = self._draft.seconds(tokens=drafting, sampled=drafting, read=context, pairs=context)
            duration += first + self._draft_step_s + max(self._depth - 1, 0) * (later + self._draft_step_s)
        return duration

    def decode_s(self, decoding: int, contexts: _Array) -> _Array:
        """(n,) durations of successive decode steps of the same sequences, by their summed contexts."""
        durations = self._target.decode_seconds(decoding, self._queries, contexts)
        durations += self._step_s + decoding * self._sequence_s
        if self._draft is not None:
            durations += self._draft.decode_seconds(decoding, self._queries, contexts)
            if self._depth > 1:
                durations += (self._depth - 1) * self._draft.decode_seconds(decoding, 1, contexts)
            durations += self._depth * self._draft_step_s
        return durations

    def work(self, decoding: _Array, contexts: _Array, prefills: _Array) -> tuple[_Array, _Array, _Array]:
        """FLOPs, bytes read and bytes written by the target in each step, on one rank.

        Args:
            decoding: (n,) sequences that decode.
            contexts: (n,) their summed contexts.
            prefills: (4, n) prefill's tokens, prompts ended, tokens read and pairs.
        """
        target, verified = self._target, decoding * self._queries
        tokens, ended, read, pairs = prefills
        tokens = tokens + verified
        flops = target.flops(tokens, verified + ended, contexts * self._queries + pairs)
        moved = target.weights_read(tokens) + target.kv_bytes * (contexts + read)
        return flops, moved, target.token_bytes * tokens
