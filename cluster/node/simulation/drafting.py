"""Speculative decoding as an order asks for it: the draft's size and cost, and how its tokens fare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.node.engine import EngineFailure
from cluster.node.simulation.arguments import Arguments
from cluster.node.simulation.speculation import (
    METHODS,
    Acceptance,
    mean_length_rates,
    ngram_acceptance,
)
from cluster.order import Cause
from search_spaces.accelerators import Accelerator
from search_spaces.model_shape import ModelShape
from search_spaces.roofline import ForwardPass, forward_pass, kv_bytes_per_token, kv_share, weight_bytes
from search_spaces.schemes import UNQUANTISED, Scheme
from search_spaces.step_model import Constants, sustained
from search_spaces.values import Json

_EAGLE = ("eagle", "eagle3", "mtp")
_EAGLE3_VOCAB = 32000  # EAGLE-3 heads for Llama predict over the target's most frequent 32,000 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """One speculation method at one depth."""

    method: str
    depth: int
    """Draft tokens a step; less than asked where the token budget holds no more."""
    acceptance: Acceptance
    slots: int
    """Tokens of the budget that each sequence takes beside its queries (`max_num_new_slots_for_drafting`)."""
    lookahead: int
    """KV slots reserved past the queries (`num_lookahead_tokens`)."""
    drops_last_hit: bool
    """EAGLE computes the last cached block again to have its hidden states."""
    draft: ForwardPass | None
    """Cost of one draft pass on one rank; None where there is no draft model."""
    weights: float
    """Bytes on one rank."""
    kv_per_token: float
    """Bytes on one rank that the draft adds to a token."""
    effective: Mapping[str, Json]


def drafting(
    asked: Mapping[str, Json] | None,
    *,
    target: ModelShape,
    accelerator: Accelerator,
    constants: Constants,
    dtype: str,
    kv_dtype: str,
    tensor_parallel: int,
    budget: int,
    acceptance: Mapping[str, Acceptance],
    describe: Callable[[str], tuple[ModelShape, Scheme]],
) -> Drafting | None:
    """Read `speculative_config`; None where there is none.

    Args:
        constants: what the draft's passes are timed by.
        budget: `max_num_batched_tokens`.
        describe: a model's shape and scheme, or EngineFailure.

    Raises:
        EngineFailure: vLLM would refuse it, or the simulation does not play it.
    """
    if asked is None:
        return None
    config = Arguments(asked)
    method, model = config.optional_word("method"), config.optional_word("model")
    method = method or _method_of(model)
    if method not in METHODS:
        raise EngineFailure(
            Cause.UNSUPPORTED,
            f"the simulated engine plays no speculative method '{method}', only {', '.join(METHODS)}",
        )
    if config.value("num_speculative_tokens_per_batch_size") is not None:
        raise EngineFailure(Cause.UNSUPPORTED, "the simulated engine plays one depth, not one per batch size")
    depth = config.optional_whole("num_speculative_tokens")
    if depth is None:
        raise _invalid("speculative_config needs num_speculative_tokens")
    slots = 1 if method == "draft_model" else 0
    # Where the budget holds fewer, vLLM cuts the draft of each sequence that it schedules.
    played = max(min(depth, budget - 1 - slots), 0)
    effective: dict[str, Json] = {"method": method, "num_speculative_tokens": depth}
    if model is not None:
        effective["model"] = model

    draft: ForwardPass | None = None
    weights = kv = 0.0
    if method != "ngram":
        ranks = config.whole("draft_tensor_parallel_size", tensor_parallel)
        shape, scheme = _draft_shape(method, model, target, describe)
        if method == "draft_model" and ranks != tensor_parallel:  # vLLM: v1/spec_decode/draft_model.py
            raise _invalid(f"draft_tensor_parallel_size={ranks} must equal the target's {tensor_parallel}")
        if shape.heads % ranks:
            raise _invalid(f"draft '{model}' has {shape.heads} attention heads, not to be split over {ranks}")
        draft = forward_pass(
            shape, scheme, accelerator, dtype=dtype, kv_dtype=kv_dtype, tensor_parallel=ranks
        )
        draft = sustained(draft, scheme, constants)
        weights = weight_bytes(shape, scheme, dtype) / ranks
        kv = kv_bytes_per_token(shape, kv_dtype) * kv_share(shape, ranks)
    return Drafting(
        method=method,
        depth=played,
        acceptance=_acceptance(config, method, model, depth, acceptance, effective),
        slots=slots,
        lookahead=0 if method == "ngram" else played,
        drops_last_hit=method in _EAGLE,
        draft=draft,
        weights=weights,
        kv_per_token=kv,
        effective=effective,
    )


def _invalid(reason: str) -> EngineFailure:
    return EngineFailure(Cause.INVALID_ARGUMENT, reason)


def _method_of(model: str | None) -> str:
    """What vLLM makes of a draft given without a method: EAGLE heads by their name, else a draft model."""
    name = (model or "").lower()
    if "eagle3" in name:
        return "eagle3"
    return "eagle" if "eagle" in name else "draft_model"


def _draft_shape(
    method: str,
    model: str | None,
    target: ModelShape,
    describe: Callable[[str], tuple[ModelShape, Scheme]],
) -> tuple[ModelShape, Scheme]:
    """An EAGLE or MTP head is one layer of the target's kind with an output head."""
    if method in _EAGLE:
        vocab = min(_EAGLE3_VOCAB, target.vocab) if method == "eagle3" else target.vocab
        head = ModelShape(
            layers=1,
            hidden=target.hidden,
            intermediate=target.intermediate,
            heads=target.heads,
            kv_heads=target.kv_heads,
            head_dim=target.head_dim,
            vocab=vocab,
            tied=True,  # it embeds with the target's embedding
            max_position=target.max_position,
            experts=target.experts,
            experts_per_token=target.experts_per_token,
        )
        return head, UNQUANTISED
    if model is None:
        raise _invalid(f"speculative method '{method}' needs a model")
    shape, scheme = describe(model)
    if shape.vocab != target.vocab:  # vLLM: config/speculative.py, verify_equal_vocab_size_if_draft_model
        raise _invalid(f"draft '{model}' has a vocabulary of {shape.vocab}, the target one of {target.vocab}")
    return shape, scheme


def _acceptance(
    config: Arguments,
    method: str,
    model: str | None,
    depth: int,
    known: Mapping[str, Acceptance],
    effective: dict[str, Json],
) -> Acceptance:
    """vLLM's synthetic acceptance where the config asks for it, else what is assumed of the draft."""
    if config.optional_word("rejection_sample_method") == "synthetic":
        effective["rejection_sample_method"] = "synthetic"
        rates = config.value("synthetic_acceptance_rates")
        if isinstance(rates, list):
            given = tuple(float(rate) for rate in rates if isinstance(rate, int | float))
        else:
            given = mean_length_rates(config.number("synthetic_acceptance_length", 1.0), depth)
        return Acceptance(rate=0.0, positions=given)
    name = (model or "").rstrip("/").rpartition("/")[2]
    base = known.get(name) or known[method]
    if method != "ngram":
        return base
    low, high = config.optional_whole("prompt_lookup_min"), config.optional_whole("prompt_lookup_max")
    low = low or high or 5  # vLLM: one stands in for the other, 5 for both
    effective["prompt_lookup_min"], effective["prompt_lookup_max"] = low, high or low
    return ngram_acceptance(base, low)
