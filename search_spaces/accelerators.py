"""Accelerators the first-order model knows: what one device sustains, and vLLM's defaults on it.

The constants are *sustained*, not peak: vendor peaks (dense, no sparsity) times the share that serving
kernels reach as a rule of thumb. They are rough until calibrated on measured trials; calibrate with
`dataclasses.replace(accelerator, bandwidth=..., ...)`.

Sources of the peaks: NVIDIA data sheets "H100 Tensor Core GPU", "H200 Tensor Core GPU", "A100 80GB"
and "L40S". Memory is what the driver reports, not the number on the box. The CPU row was set from one
2-core x86 machine serving a 135M-parameter model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30

# Shares of peak: decode streams weights and cache at about four fifths of the memory's peak; prefill
# GEMMs with attention and norms between them reach about half of the tensor cores' peak.
_STREAM = 0.80
_GEMM = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. Bytes, bytes per second, FLOPs per second, seconds."""

    name: str
    memory: float
    """What the driver reports as total."""
    bandwidth: float
    """Sustained from the device's memory."""
    flops: Mapping[str, float]
    """Sustained, by the type multiplied: "bf16" always; "fp8" and "int8" where the device has them."""
    link_bandwidth: float
    """To its peers, one direction, for tensor parallelism."""
    link_latency_s: float
    """Of one all-reduce of nothing."""
    step_s: float
    """Launch, scheduling and sampling of one target step, whatever the batch."""
    sequence_s: float
    """The same, for each sequence in it."""
    draft_step_s: float
    """Launch of one forward pass of a draft model."""
    rest: float
    """Memory taken by the context, collectives and the allocator's slack."""
    max_num_seqs: int
    """vLLM's default for the OpenAI server (`EngineArgs.get_batch_defaults`, 0.32)."""
    max_num_batched_tokens: int
    """The same; per rank on the CPU, as is `max_num_seqs`."""
    block_size: int = 16
    graphs: bool = True
    """Whether CUDA graphs are captured, and take memory."""
    refused: frozenset[str] = field(default=frozenset())
    """Values of `quantization` that vLLM refuses to start with on this device."""

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


ACCELERATORS: Mapping[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="H100-80G",  # SXM5
            memory=79.1 * GIB,
            bandwidth=_STREAM * 3.35e12,
            flops={"bf16": _GEMM * 989e12, "fp8": _GEMM * 1979e12, "int8": _GEMM * 1979e12},
            link_bandwidth=0.7 * 450e9,  # NVLink 4: 900 GB/s both ways
            link_latency_s=9e-6,
            step_s=1.2e-3,
            sequence_s=6e-6,
            draft_step_s=0.35e-3,
            rest=1.1 * GIB,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
        ),
        Accelerator(
            name="H200",  # SXM
            memory=139.8 * GIB,
            bandwidth=_STREAM * 4.8e12,
            flops={"bf16": _GEMM * 989e12, "fp8": _GEMM * 1979e12, "int8": _GEMM * 1979e12},
            link_bandwidth=0.7 * 450e9,
            link_latency_s=9e-6,
            step_s=1.2e-3,
            sequence_s=6e-6,
            draft_step_s=0.35e-3,
            rest=1.1 * GIB,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
        ),
        Accelerator(
            name="A100-80G",  # SXM4
            memory=79.2 * GIB,
            bandwidth=_STREAM * 2.039e12,
            flops={"bf16": _GEMM * 312e12, "int8": _GEMM * 624e12},
            link_bandwidth=0.7 * 300e9,  # NVLink 3: 600 GB/s both ways
            link_latency_s=11e-6,
            step_s=1.5e-3,
            sequence_s=8e-6,
            draft_step_s=0.45e-3,
            rest=1.1 * GIB,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
        ),
        Accelerator(
            name="L40S",
            memory=44.4 * GIB,
            bandwidth=_STREAM * 864e9,
            flops={"bf16": _GEMM * 362e12, "fp8": _GEMM * 733e12, "int8": _GEMM * 733e12},
            link_bandwidth=0.7 * 32e9,  # PCIe 4 ×16, no NVLink
            link_latency_s=25e-6,
            step_s=1.4e-3,
            sequence_s=8e-6,
            draft_step_s=0.4e-3,
            rest=1.0 * GIB,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
        ),
        Accelerator(
            name="cpu",
            memory=16 * GIB,
            bandwidth=10e9,
            flops={"bf16": 0.2e12, "int8": 0.2e12},
            link_bandwidth=5e9,
            link_latency_s=50e-6,
            step_s=15e-3,
            sequence_s=0.3e-3,
            draft_step_s=4e-3,
            rest=0.6 * GIB,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            block_size=128,
            graphs=False,
            # Tried with vLLM 0.32: the first two and torchao end the start with an error.
            refused=frozenset({"fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "torchao"}),
        ),
    )
}

_ALIASES = {
    "h100": "H100-80G",
    "a100": "A100-80G",
    "h200": "H200",
    "l40s": "L40S",
}


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name, by this table's spelling or by Ray's (`H100`, `A100-80G`, `L40S`).

    Raises:
        ValueError: it is not in the table; the message lists what is.
    """
    folded = name.lower()
    folded = _ALIASES.get(folded, folded)
    for known in ACCELERATORS.values():
        if known.name.lower() == folded.lower():
            return known
    raise ValueError(f"no figures for accelerator '{name}'; known: {', '.join(ACCELERATORS)}")
