"""Traffic that the search did not see, one workload a pair of runs: of its kind, with other requests."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, takewhile

from cluster.traffic.cut import cap, window
from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.sessions import Sessions
from cluster.traffic.trace import Trace, read_trace
from cluster.traffic.workload import Workload
from objectives.statistics import FEWEST
from search_spaces.values import Json
from tuner.mistakes import Mistake
from tuner.verify.promised import Promised, Traffic

_NOT_NEW = (
    "the trace that was searched on, with other prompts: no part of it was held out, so this says nothing of "
    "other requests; give some with --trace (tuner trace split makes it)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What a verification plays."""

    workloads: tuple[Workload, ...]
    """One a pair; both of its runs are played it."""
    words: str
    held_out: bool
    """Whether no request of it was seen by the search."""


def held_out(promised: Promised, trace: str | None, *, pairs: int, draw: int, tokenizer: str) -> HeldOut:
    """The traffic of a verification; the same arguments give the same.

    Traffic that the study made is made again with other seeds, another for each pair. A trace given is cut
    into windows as long as what was searched on, another for each pair as far as there are so many. Where
    neither is there, the searched trace is all there is: its arrivals and lengths, with other prompts.

    Args:
        trace: a file of traffic like the study's that it did not search on; None: none.
        draw: which; other numbers give other traffic.
        tokenizer: the model whose tokenizer makes the prompts, as it is found here.

    Raises:
        Mistake: there is no traffic, or the trace is the very one that was searched on.
        TraceError: the trace cannot be used.
    """
    wanted = promised.traffic
    new = True
    if trace is not None:
        traces, words = _windows(wanted, trace, pairs, draw)
    elif wanted.make is not None:
        seeds = [_seed(wanted, "trace", draw, pair) for pair in range(pairs)]
        traces = [_made(wanted.make, seed, wanted.max_context) for seed in seeds]
        words = "made by the study's recipe with other seeds, another for each pair"
    else:
        traces, words, new = [_searched(wanted)] * pairs, _NOT_NEW, False
    return HeldOut(
        workloads=tuple(
            Workload(
                trace=one,
                speed=wanted.speed,
                sessions=Sessions(wanted.sessions),
                seed=_seed(wanted, "prompts", draw, pair),
                tokenizer=tokenizer,
            )
            for pair, one in enumerate(traces)
        ),
        words=words,
        held_out=new,
    )


def _seed(traffic: Traffic, what: str, draw: int, pair: int) -> int:
    """A seed that no study is begun with by counting up, and that differs from the search's."""
    text = f"verify {what} {traffic.digest} {draw} {pair}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) | 1 << 47


def _made(make: Mapping[str, Json], seed: int, max_context: int | None) -> Trace:
    made = make_trace(recipe_from({**make, "seed": seed}, where="traffic.make"))
    return made if max_context is None else cap(made, max_context)


def _searched(traffic: Traffic) -> Trace:
    if traffic.trace is None:
        raise Mistake("what was searched on is not known; give traffic with --trace")
    found = read_trace(traffic.trace, max_context=traffic.max_context)
    if found.digest != traffic.digest:
        raise Mistake(
            f"{traffic.trace} is another trace ({found.digest[:12]}) than was searched on "
            f"({traffic.digest[:12]}); give held-out traffic with --trace"
        )
    return found


def _windows(traffic: Traffic, path: str, pairs: int, draw: int) -> tuple[list[Trace], str]:
    whole = read_trace(path, max_context=traffic.max_context)
    if whole.digest == traffic.digest:
        raise Mistake(f"{path} is the trace that was searched on; verify on another part (tuner trace split)")
    long_s, end_s = traffic.duration_s, whole.requests[-1].arrival_s
    if not long_s or end_s < 2 * long_s:
        return [whole] * pairs, f"{path}, the whole of it for every pair, with other prompts for each"
    starts_s = list(takewhile(lambda start_s: start_s + long_s <= end_s, (k * long_s for k in count())))
    arrivals = [request.arrival_s for request in whole.requests]
    busy = [s for s in starts_s if sum(s <= at < s + long_s for at in arrivals) >= FEWEST]
    if not busy:
        return [whole] * pairs, f"{path}, the whole of it for every pair, with other prompts for each"
    chosen = [busy[(draw * pairs + pair) % len(busy)] for pair in range(pairs)]
    cuts = [window(whole, start_s=start_s, end_s=start_s + long_s) for start_s in chosen]
    return cuts, f"{len(set(chosen))} windows of {path}, each {long_s:.0f} s as recorded"
