"""What a config is to the first-order model: its passes' costs, its limits and its KV pool; or why not.

Reads engine arguments as vLLM does, defaults filled in, as far as they decide speed or memory. Arguments that
it gives no meaning to are left out of account. Where something has no figures nothing is predicted, which is
no verdict; a `Misfit` is one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from search_spaces.accelerators import GIB, Accelerator
from search_spaces.model_shape import ModelShape, UnknownShape
from search_spaces.roofline import (
    ForwardPass,
    MemoryFit,
    forward_pass,
    kv_bytes_per_token,
    kv_share,
    memory_fit,
    weight_bytes,
)
from search_spaces.schemes import EXPERTS_ONLY, UNQUANTISED, Scheme, SchemeMismatch, served_scheme
from search_spaces.settings import Settings, at, gpus_needed
from search_spaces.values import Json

Describe = Callable[[str], tuple[ModelShape, Scheme]]
"""A model's shape and its checkpoint's scheme. Raises ValueError (UnknownShape) where they are not known."""

_UTILISATION = 0.92  # vLLM 0.32, config/cache.py
_CPU_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_DTYPES = {"auto": "bfloat16", "half": "float16", "float": "float32"}
_HEADS = ("eagle", "eagle3", "mtp")
_EAGLE3_VOCAB = 32000  # EAGLE-3 heads for Llama predict over the most frequent 32,000 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What is assumed of a draft's luck."""

    rate: float
    """Probability that a draft token is accepted, given that those before it were."""
    found: float = 1.0
    """Share of steps and sequences that have a draft at all."""

    def tokens(self, depth: int) -> float:
        """Expected a step and sequence, the target's own included: 1 + found · (r + r² + … + r^depth)."""
        return 1 + self.found * sum(self.rate ** (i + 1) for i in range(depth))


ASSUMED: Mapping[str, Drafted] = MappingProxyType(
    {
        "ngram": Drafted(rate=0.6, found=0.4),
        "draft_model": Drafted(rate=0.7),
        "eagle": Drafted(rate=0.7),
        "eagle3": Drafted(rate=0.75),
        "mtp": Drafted(rate=0.8),
        # The CPU space's draft is the target's own first layers, untrained.
        "SmolLM2-135M-draft": Drafted(rate=0.02),
    }
)
"""By method, or by the draft's name, which takes precedence. Rough: acceptance hangs on text and draft, and
is the first thing that trials teach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One config, ready to be timed. Costs are one rank's."""

    target: ForwardPass
    draft: ForwardPass | None
    depth: int
    drafted: Drafted
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    kv_tokens: float
    """What the KV pool holds."""
    ranks: int = 1
    """Devices it takes."""
    fit: MemoryFit | None = None
    """How a rank's memory is split; None where nobody has worked it out."""


class Misfit(ValueError):
    """The config is expected not to start; the message says why."""

    fit: MemoryFit | None = None
    """The memory that it lacks; None where something else is the matter."""

    @classmethod
    def of(cls, fit: MemoryFit) -> "Misfit":
        """For want of memory."""
        misfit = cls(fit.shortfall)
        misfit.fit = fit
        return misfit


@dataclass(slots=True)
class Reader:
    """Reads settings; the costs of passes that many configs share are worked out once."""

    accelerator: Accelerator
    describe: Describe
    assumed: Mapping[str, Drafted] = field(default_factory=lambda: ASSUMED)
    _models: dict[str, tuple[ModelShape, Scheme]] = field(default_factory=dict)
    _passes: dict[tuple[ModelShape, Scheme, str, str, int], ForwardPass] = field(default_factory=dict)

    def read(self, settings: Settings) -> Deployment:
        """The deployment that these settings make.

        Raises:
            Misfit: it would not start.
            UnknownShape, KeyError: there are no figures for something in it.
        """
        device, given = self.accelerator, settings.arguments
        shape, checkpoint = self._model(settings.model)
        tp = _whole(given, "tensor_parallel_size", 1)
        if shape.heads % tp or (shape.kv_heads % tp and tp % shape.kv_heads):
            raise Misfit(f"{shape.heads} attention and {shape.kv_heads} KV heads over {tp} ranks")
        dtype = _DTYPES.get(_word(given, "dtype", "auto"), _word(given, "dtype", "auto"))
        kv_word = _word(given, "kv_cache_dtype", "auto")
        kv_dtype = dtype if kv_word == "auto" else kv_word
        scheme = self._scheme(given.get("quantization"), checkpoint, shape)
        length = _whole(given, "max_model_len", shape.max_position)
        seqs, tokens = self._batch(given, tp)
        method = at(given, "speculative_config.method")
        depth, drafted, draft_model = 0, Drafted(rate=0.0, found=0.0), None
        if isinstance(given.get("speculative_config"), dict):
            depth = _whole(given, "speculative_config.num_speculative_tokens", 0)
            method = method if isinstance(method, str) else "draft_model"
            name = at(given, "speculative_config.model")
            drafted = self._luck(method, name)
            draft_model = self._draft(method, name, shape)
        draft, weights, draft_kv = None, 0.0, 0.0
        if draft_model is not None:
            ranks = _whole(given, "speculative_config.draft_tensor_parallel_size", tp)
            draft = self._pass(*draft_model, dtype, kv_dtype, ranks)
            weights = weight_bytes(*draft_model, dtype) / ranks
            draft_kv = kv_bytes_per_token(draft_model[0], kv_dtype) * kv_share(draft_model[0], ranks)
        block = _whole(given, "block_size", device.block_size)
        fit = memory_fit(
            shape,
            scheme,
            device,
            utilisation=_number(given, "gpu_memory_utilization", _UTILISATION),
            max_model_len=length,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            block_size=block,
            dtype=dtype,
            kv_dtype=kv_dtype,
            tensor_parallel=tp,
            depth=depth,
            draft_weights=weights,
            draft_kv_per_token=draft_kv,
            eager=given.get("enforce_eager") is True,
        )
        pool = self._kv_bytes(settings)
        if fit.needed_beside_kv + (pool or 0.0) > fit.total or (pool is None and not fit.fits):
            raise Misfit.of(fit)
        blocks = fit.blocks if pool is None else int(pool // fit.block)
        blocks = _whole(given, "num_gpu_blocks_override", blocks)
        if blocks < fit.least_blocks:
            raise Misfit(f"{blocks} KV blocks where {fit.least_blocks} are the least")
        return Deployment(
            target=self._pass(shape, scheme, dtype, kv_dtype, tp),
            draft=draft,
            depth=depth,
            drafted=drafted,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            prefix_caching=given.get("enable_prefix_caching") is not False,
            kv_tokens=float(blocks * block),
            ranks=gpus_needed(settings),
            fit=fit,
        )

    def _model(self, name: str) -> tuple[ModelShape, Scheme]:
        if name not in self._models:
            self._models[name] = self.describe(name)
        return self._models[name]

    def _pass(self, shape: ModelShape, scheme: Scheme, dtype: str, kv_dtype: str, ranks: int) -> ForwardPass:
        key = (shape, scheme, dtype, kv_dtype, ranks)
        if key not in self._passes:
            self._passes[key] = forward_pass(
                shape, scheme, self.accelerator, dtype=dtype, kv_dtype=kv_dtype, tensor_parallel=ranks
            )
        return self._passes[key]

    def _scheme(self, asked: Json, checkpoint: Scheme, shape: ModelShape) -> Scheme:
        quantization = asked if isinstance(asked, str) else None
        if quantization in self.accelerator.refused:
            raise Misfit(f"quantization='{quantization}' does not start on {self.accelerator.name}")
        if quantization in EXPERTS_ONLY and shape.experts == 1:
            raise Misfit(f"quantization='{quantization}' quantises experts only, here are none")
        try:
            return served_scheme(quantization, checkpoint)
        except SchemeMismatch as error:
            raise Misfit(str(error)) from error

    def _batch(self, given: Mapping[str, Json], tp: int) -> tuple[int, int]:
        device = self.accelerator
        ranks = tp if device.is_cpu else 1
        tokens = _whole(given, "max_num_batched_tokens", device.max_num_batched_tokens * ranks)
        return _whole(given, "max_num_seqs", min(device.max_num_seqs * ranks, tokens)), tokens

    def _luck(self, method: str, name: Json) -> Drafted:
        last = name.rstrip("/").rpartition("/")[2] if isinstance(name, str) else ""
        return self.assumed.get(last) or self.assumed[method]

    def _draft(self, method: str, name: Json, target: ModelShape) -> tuple[ModelShape, Scheme] | None:
        """An EAGLE or MTP head is one layer of the target's kind with an output head."""
        if method in ("ngram", "suffix"):
            return None
        if method in _HEADS:
            vocab = min(_EAGLE3_VOCAB, target.vocab) if method == "eagle3" else target.vocab
            return _head(target, vocab), UNQUANTISED
        if not isinstance(name, str):
            raise Misfit(f"speculative method {method} needs a model")
        shape, scheme = self._model(name)
        if shape.vocab != target.vocab:
            raise Misfit(
                f"draft '{name}' has a vocabulary of {shape.vocab}, the target one of {target.vocab}"
            )
        return shape, scheme

    def _kv_bytes(self, settings: Settings) -> float | None:
        """What is asked for by itself; None: what utilisation leaves."""
        explicit = settings.arguments.get("kv_cache_memory_bytes")
        if isinstance(explicit, int) and not isinstance(explicit, bool):
            return float(explicit)
        space = settings.environment.get(_CPU_KV_SPACE) if self.accelerator.is_cpu else None
        return float(space) * GIB if space is not None and space.isdecimal() else None


def _head(target: ModelShape, vocab: int) -> ModelShape:
    return ModelShape(
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


def _whole(given: Mapping[str, Json], path: str, default: int) -> int:
    value = at(given, path)
    if isinstance(value, str):
        raise UnknownShape(f"{path}={value!r} is text that only vLLM reads")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _number(given: Mapping[str, Json], path: str, default: float) -> float:
    value = at(given, path)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _word(given: Mapping[str, Json], path: str, default: str) -> str:
    value = at(given, path)
    return value if isinstance(value, str) else default
