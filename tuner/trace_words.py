"""A trace's figures as a person reads them. Only words here."""

from collections.abc import Iterator

from cluster.traffic.show import Lengths
from tuner.trace_usecases import Imported, Parts, Recorded, Shown, Written

_BARS = "▁▂▃▄▅▆▇█"


def shown_lines(shown: Shown) -> Iterator[str]:
    """What `tuner trace show` prints."""
    seen, pace = shown.figures, shown.pace
    at = "" if shown.speed == 1 else f" at {shown.speed:g} times its recorded speed"
    yield f"{shown.path}: {seen.requests} requests in {seconds(seen.duration_s / shown.speed)}{at}"
    yield from (f"note: {note}" for note in shown.notes)
    if seen.rate is not None and seen.gap_cv is not None:
        yield (
            f"rate          {seen.rate * shown.speed:.4g} requests/s, at most {pace.peak:.4g} "
            f"over {pace.window_s:g} s"
        )
        yield f"              {sparkline(pace.rates)} by {pace.window_s:g} s"
        swell = (
            "" if pace.dispersion is None else f", counts by {pace.window_s:g} s vary {pace.dispersion:.3g}"
        )
        yield f"burstiness    gaps vary {seen.gap_cv:.3g} (Poisson 1, bursts more){swell} (Poisson 1)"
    else:
        yield "rate          none: all requests arrive at once"
    yield f"prompts       {lengths(seen.input_length)}"
    yield f"outputs       {lengths(seen.output_length)}"
    yield f"prefix share  {seen.prefix_share:.1%} of prompt tokens, in blocks of {seen.block_tokens}"
    if seen.prefix_share > 0:
        yield f"              {sparkline(shown.share_by_block, top=1.0)} by block, from the first"
        hits = ", ".join(f"{block}: {share:.1%}" for block, share in shown.hit_share.items())
        yield f"              hits of a cache that never forgets, by its block: {hits}"
    yield f"sessions      {_sessions(shown)}"
    yield f"concurrency   {_concurrency(shown)}"
    for enough in shown.enough:
        long = "more than the trace has" if enough.seconds is None else seconds(enough.seconds)
        yield f"enough for    {enough.what}: {enough.requests} requests, {long}"
    yield f"              (configs paired by request, whose log-ratios vary {shown.pair_sd:g}: --pair-sd)"


def written_lines(written: Written) -> Iterator[str]:
    """What a command says that wrote a trace."""
    made = written.figures
    yield (
        f"wrote {written.path}: {made.requests} requests in {seconds(made.duration_s)}, "
        f"{made.prefix_share:.1%} of prompt tokens shared"
    )
    yield from (f"note: {note}" for note in written.notes)
    yield f"prompts       {lengths(made.input_length)}"
    yield f"outputs       {lengths(made.output_length)}"


def imported_lines(imported: Imported) -> Iterator[str]:
    """What `tuner trace import` says: the account of all rows, then the trace."""
    report = imported.report
    yield f"read {report.read} rows as {report.format}, kept {report.kept}"
    yield from (f"dropped {count}: {reason}" for reason, count in report.dropped.items())
    yield from (f"  {example}" for example in report.examples)
    yield from written_lines(imported.written)


def parts_lines(parts: Parts) -> Iterator[str]:
    """What `tuner trace split` says."""
    yield from written_lines(parts.search)
    yield from written_lines(parts.held_out)
    begun = f"{parts.shared_prefixes} of {parts.held_out.figures.requests} held-out prompts"
    tokens = f"{parts.shared_tokens:.1%} of the held-out prompt tokens"
    yield f"no session is in both; {begun} begin like one searched on, with {tokens}"


def recorded_lines(recorded: Recorded) -> Iterator[str]:
    """What `tuner trace record` says at its end."""
    if not recorded.counts.get("recorded"):
        yield "nothing was recorded: no file was written"
    else:
        yield f"wrote {recorded.path}: {recorded.counts['recorded']} requests"
    yield from (f"{count} {what}" for what, count in recorded.counts.items() if what != "recorded")


def lengths(of: Lengths) -> str:
    """A distribution of lengths in one line."""
    return (
        f"mean {of.mean:.0f} tokens (varies {of.cv:.2f}), P50 {of.p50}, P90 {of.p90}, P99 {of.p99}, "
        f"longest {of.longest}"
    )


def seconds(duration_s: float) -> str:
    """A duration as people say it."""
    if duration_s < 120:
        return f"{duration_s:.3g} s"
    if duration_s < 7200:
        return f"{duration_s / 60:.3g} min"
    return f"{duration_s / 3600:.3g} h"


def sparkline(values: tuple[float, ...], *, top: float | None = None) -> str:
    """Values from 0 up as bars of eight heights; `top` is the tallest one's value (None: the largest)."""
    most = top if top is not None else max(values, default=0.0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int(value / most * len(_BARS)), len(_BARS) - 1)] for value in values)


def _sessions(shown: Shown) -> str:
    sessions = shown.sessions
    if sessions is None:
        return "none"
    gaps = (
        ""
        if sessions.gap_p50_s is None or sessions.gap_p90_s is None
        else f", from turn to turn P50 {seconds(sessions.gap_p50_s)}, P90 {seconds(sessions.gap_p90_s)}"
    )
    return (
        f"{sessions.sessions}, of {sessions.turns_mean:.3g} requests on average, {sessions.turns_longest} at "
        f"most, {sessions.single} of one only{gaps}"
    )


def _concurrency(shown: Shown) -> str:
    if shown.concurrency is None or shown.service is None:
        return "needs an assumption: --ttft-ms and --tpot-ms, what a request takes"
    level, taken = shown.concurrency, shown.service
    return (
        f"mean {level.mean:.3g}, P50 {level.p50}, P90 {level.p90}, P99 {level.p99}, peak {level.peak}, "
        f"were a request to take {taken.ttft_s * 1000:g} ms and {taken.tpot_s * 1000:g} ms a further token"
    )
