"""The engine that a scenario is searched on: the simulated one, off the tables by some factors, and stricter.

A search whose prior is made of the formulas that its engine plays by would be told the answer. So the
engine of each scenario differs from what the tables say, in constants and in acceptance, and refuses or loses
what no formula of the prior knows of.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster.node.engine import Endpoint, EngineFailure
from cluster.node.phases import Phases
from cluster.node.simulated import SimulatedEngine
from cluster.node.simulation.settings import Assumptions, Settings, resolve
from cluster.node.simulation.speculation import DEFAULT_ACCEPTANCE, Acceptance
from cluster.order import Cause, Order
from search_spaces.accelerators import GIB, accelerator

_LOGIT_BYTES = 2 * 4  # float32, and one sorted copy: as search_spaces.roofline.memory_fit counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Reality:
    """In what an engine differs from the tables of `search_spaces`."""

    bandwidth: float = 1.0
    """Times the table's; the next three likewise."""
    compute: float = 1.0
    step: float = 1.0
    draft_step: float = 1.0
    rest: float = 0.0
    """Bytes of memory taken beside what the table says."""
    acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    """By method or draft, in place of the defaults."""

    def assumptions(self, device: str, run_noise: float) -> Assumptions:
        """For the simulated engine on a device of that name."""
        table = accelerator(device)
        return Assumptions(
            accelerator=replace(
                table,
                bandwidth=table.bandwidth * self.bandwidth,
                flops={kind: rate * self.compute for kind, rate in table.flops.items()},
                step_s=table.step_s * self.step,
                draft_step_s=table.draft_step_s * self.draft_step,
                rest=table.rest + self.rest,
            ),
            acceptance={**DEFAULT_ACCEPTANCE, **self.acceptance},
            run_noise=run_noise,
        )


class StrictEngine:
    """The simulated engine with two faults of real ones.

    An fp8_e5m2 cache does not go with weights in fp8. And what a drafted batch's logits take beyond the one
    row a sequence that was set aside at start must fit into what was not given to the engine, or it dies.
    """

    name = "simulated"

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._engine = SimulatedEngine(assumptions)

    def serve(
        self, order: Order, folder: Path, phases: Phases | None = None
    ) -> AbstractContextManager[Endpoint]:
        return self._serve(order, folder)

    @contextmanager
    def _serve(self, order: Order, folder: Path) -> Iterator[Endpoint]:
        settings = resolve(order, self._assumptions)
        if settings.kv_dtype == "fp8_e5m2" and settings.scheme.multiplies == "fp8":
            raise EngineFailure(Cause.UNSUPPORTED, "fp8_e5m2 KV cache is not supported with fp8 weights")
        short = logits_unplanned(settings) - (settings.fit.total - settings.fit.allowed)
        if short > 0:
            raise EngineFailure(Cause.DIED_UNDER_LOAD, f"{short / GIB:.2f} GiB short for the drafts' logits")
        with self._engine.serve(order, folder) as endpoint:
            yield endpoint


def logits_unplanned(settings: Settings) -> float:
    """Bytes on one rank of a full batch's logits beyond one row a sequence."""
    if settings.drafting is None:
        return 0.0
    rows = min(
        settings.max_num_seqs * settings.drafting.depth,
        settings.max_num_batched_tokens - settings.max_num_seqs,
    )
    return _LOGIT_BYTES * max(rows, 0) * settings.shape.vocab / settings.tensor_parallel
