"""Which configs cannot start and why, by the bytes that the first-order model counts. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.accelerators import GIB, Accelerator
from search_spaces.deployment import Deployment, Misfit, Reader
from search_spaces.first_order import Traffic, decode_batch
from search_spaces.model_shape import UnknownShape
from search_spaces.parameters import Categorical, every
from search_spaces.roofline import MemoryFit
from search_spaces.space import Config, Space
from tuner.plan.shapes import ChoiceReport, FitReport, MisfitReport
from tuner.titles import Titles

_NEARLY = 0.999

_DEVIATIONS = 3.0
"""From which on a choice is told where configs were drawn by chance."""


@dataclass(frozen=True, slots=True)
class _Lost:
    config: Config
    misfit: Misfit


def fit_report(
    space: Space,
    configs: Sequence[Config],
    reader: Reader,
    device: Accelerator,
    traffic: Traffic,
    *,
    every_config: bool,
) -> FitReport:
    """What becomes of these configs.

    Args:
        configs: valid ones.
        traffic: at the speed that every config is played at.
        every_config: whether `configs` are all that the space has.
    """
    started: list[Deployment] = []
    lost: list[_Lost] = []
    unknown = 0
    for config in configs:
        try:
            started.append(reader.read(space.settings(config)))
        except Misfit as misfit:
            lost.append(_Lost(config, misfit))
        except (KeyError, UnknownShape):
            unknown += 1
    held = [kv_sequences(deployment, traffic) for deployment in started]
    return FitReport(
        accelerator=device.name,
        looked_at=len(configs),
        every=every_config,
        unknown=unknown,
        misfits=_misfits(space, lost),
        choices=_choices(space, configs, lost, deviations=0.0 if every_config else _DEVIATIONS),
        short_of_kv=sum(short_of_kv(deployment, device, traffic) for deployment in started),
        kv_sequences=(min(held), max(held)) if held else None,
    )


def reason(fit: MemoryFit) -> str:
    """What has no room: the first of these without which the rest would fit. The draft, the activations of a
    step's token budget, the KV cache of one longest sequence; else the weights."""
    least = fit.least_blocks * fit.block
    lacking = fit.needed_beside_kv + least - fit.allowed
    if fit.needed_beside_kv > fit.total and lacking <= 0:
        lacking = fit.needed_beside_kv - fit.total
    for words, taken in (
        ("the draft's weights", fit.draft),
        ("activations of max_num_batched_tokens and max_num_seqs", fit.activations),
        ("the KV cache of one sequence of max_model_len", least),
    ):
        if taken >= lacking:
            return words
    return "the weights"


def kv_sequences(deployment: Deployment, traffic: Traffic) -> float:
    """Sequences of the traffic's mean length, half of the answer written, that the KV pool holds at once.
    A shared prefix lies in the pool once."""
    shared = float(traffic.shared_tokens.mean()) if deployment.prefix_caching else 0.0
    return deployment.kv_tokens / (
        float(traffic.input_tokens.mean()) - shared + float(traffic.output_tokens.mean()) / 2
    )


def short_of_kv(deployment: Deployment, device: Accelerator, traffic: Traffic) -> bool:
    """Whether requests wait for KV blocks, not for slots, at the rate at which they come."""
    span = float(traffic.arrival_s[-1])
    holds = kv_sequences(deployment, traffic)
    if holds >= deployment.max_num_seqs or span <= 0:
        return False
    rate = (len(traffic.arrival_s) - 1) / span
    return decode_batch(deployment, device, traffic, rate) >= _NEARLY * holds


def _misfits(space: Space, lost: Sequence[_Lost]) -> tuple[MisfitReport, ...]:
    titles = Titles.of(every(space.parameters))
    grouped: dict[str, list[_Lost]] = {}
    for one in lost:
        fit = one.misfit.fit
        why = str(one.misfit) if fit is None else f"no memory for {reason(fit)}"
        grouped.setdefault(why, []).append(one)
    return tuple(
        MisfitReport(
            reason=why,
            configs=len(found),
            example=titles.config(found[0].config.values) + _lacks(found[0].misfit),
        )
        for why, found in sorted(grouped.items(), key=lambda pair: -len(pair[1]))
    )


def _lacks(misfit: Misfit) -> str:
    """How much memory is needed and had; nothing where that is not the matter."""
    if misfit.fit is None:
        return ""
    drafted = misfit.fit.draft
    return f": {misfit}" + (f"; {drafted / GIB:.2f} of the weights are the draft's" if drafted else "")


def _choices(
    space: Space, configs: Sequence[Config], lost: Sequence[_Lost], *, deviations: float
) -> tuple[ChoiceReport, ...]:
    """Choices that fare worse than configs at large by more than so many deviations of a binomial share."""
    paths = {p.path for p in every(space.parameters) if isinstance(p, Categorical) and len(p.corners) > 1}

    def count(found: Sequence[Config]) -> Counter[tuple[str, str]]:
        return Counter((path, str(value)) for c in found for path, value in c.values.items() if path in paths)

    whole, failed = count(configs), count([one.config for one in lost])
    share = len(lost) / len(configs) if configs else 0.0
    found = [
        ChoiceReport(path=path, choice=choice, configs=whole[path, choice], misfits=times)
        for (path, choice), times in failed.items()
        if times / whole[path, choice]
        > share + deviations * (share * (1 - share) / whole[path, choice]) ** 0.5
    ]
    return tuple(sorted(found, key=lambda one: (-one.misfits / one.configs, one.path, one.choice)))
