"""An explanation as people and programs read it. Words only."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO

from rich.console import Console
from rich.table import Table

from objectives.step_fit import Errors, Fitted, Standing, StepFit
from objectives.step_times import Kind
from search_spaces.values import Json
from tuner.explain import BESIDE, Explanation, Prompt, Split, TokenTime, percent
from tuner.titles import number, trial_title

_WORDS = {
    "weights_s": "weights, read from memory",
    "kv_s": "keys and values, read from memory",
    "activations_s": "activations, moved through memory",
    "compute_s": "compute",
    "links_s": "all-reduces between ranks",
    "draft_s": "draft",
    "step_s": "scheduling and launch, a step",
    "sequence_s": "scheduling and sampling, by sequence",
}
_BESIDE_WORDS = {"decode": "prompts of others in the step", "prefill": "decoding of others in the step"}
_CONSTANTS = {
    "bandwidth": ("memory bandwidth", 1e-9, "GB/s"),
    "compute": ("compute, weights", 1e-12, "TFLOP/s"),
    "step_s": ("engine's time a step", 1e3, "ms"),
    "sequence_s": ("engine's time a sequence", 1e3, "ms"),
    "draft_step_s": ("launch of a draft pass", 1e3, "ms"),
    "lookup_step_s": ("n-gram speculation a step", 1e3, "ms"),
    "lookup_s": ("n-gram lookup a sequence", 1e3, "ms"),
}
_STANDINGS = {Standing.FITTED: "fitted", Standing.TABLE: "the table's", Standing.LEANING: "hardly told"}
_STANDING_NOTES = {
    Standing.TABLE: "the table's: these trials do not tell it, so the accelerator table's value is kept",
    Standing.LEANING: "hardly told: by these trials, though not what the accelerator table says of it",
}
_MOSTLY = 0.5


def explanation_lines(seen: Explanation, *, width: int | None = None) -> list[str]:
    """What `tuner explain` prints."""
    return [
        f"{seen.study.name}, {trial_title(seen.trial, seen.study)}, on {seen.hardware}",
        _used(seen),
        "",
        *_decode_lines(seen, width),
        "",
        *_prefill_lines(seen, width),
        "",
        *_constants_lines(seen.fit.fitted, width),
        "",
        *_error_lines(seen, width),
    ]


def explanation_json(seen: Explanation) -> dict[str, Json]:
    """What `tuner explain --json` prints. Seconds, bytes and FLOPs per second; errors as shares."""
    return {
        "study": seen.study.name,
        "trial": seen.trial.number,
        "engine": seen.trial.ran.engine or seen.study.engine,
        "hardware": seen.hardware,
        "trials_used": [one.trial.number for one in seen.used],
        "trials_left_out": [{"trial": one.number, "reason": one.reason} for one in seen.left_out],
        "trials_of_means_only": list(seen.of_means),
        "decode": _token_json(seen.decode),
        "prefill": None if seen.prefill is None else _token_json(seen.prefill),
        "prompt": None if seen.prompt is None else dict(asdict(seen.prompt)),
        "decoding": seen.decoding,
        "decoding_by_littles_law": seen.settled,
        "max_num_seqs": seen.max_num_seqs,
        "noise": dict(asdict(seen.fit.noise)),
        "constants": [{**asdict(one), "standing": str(one.standing)} for one in seen.fit.fitted],
        "errors": {kind: _errors_json(errors) for kind, errors in seen.fit.errors.items()},
    }


def _used(seen: Explanation) -> str:
    steps = sum(len(one.observations()) for one in seen.used)
    words = f"fitted on {len(seen.used)} trials ({steps} groups of like steps)"
    if seen.left_out:
        reasons = Counter(one.reason for one in seen.left_out)
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        words += f"; {len(seen.left_out)} left out: {told}"
    if seen.of_means:
        words += f"; of {len(seen.of_means)} only means are there, their requests are not"
    return words


def _decode_lines(seen: Explanation, width: int | None) -> list[str]:
    token = seen.decode
    load = token.load
    head = (
        f"A decode token took {_time(token.measured_s)}: a step of {_ms(token.step_s)} ms over "
        f"{number(token.tokens_per_step)} token(s) a step. As it meets them, {number(load.sequences)} of "
        f"{seen.max_num_seqs} sequences decode in a step, with {number(load.context)} tokens cached, "
        f"{number(load.queries)} token(s) verified for each, and {number(load.prompt_tokens)} prompt tokens "
        "are computed."
    )
    lines = [head, _verdict(token)]
    if token.split is not None:
        lines += _split_lines(token.kind, token.split, width)
        if seen.settled is not None and seen.decoding is not None:
            lines.append(_settled_words(seen.settled, seen.decoding, seen.max_num_seqs))
    return lines


def _settled_words(settled: float, decoding: float, slots: int) -> str:
    found = f"all {slots} slots" if settled >= slots else f"{number(settled)} sequences"
    return (
        f"The batch: {number(decoding)} sequences decoded on average while requests came; by Little's law "
        f"with the model's step times {found} would, if they came evenly and for long."
    )


def _prefill_lines(seen: Explanation, width: int | None) -> list[str]:
    token = seen.prefill
    if token is None:
        return ["No prefill was seen that could be timed."]
    head = (
        f"A computed prompt token took {_time(token.measured_s)}: a step of {_ms(token.step_s)} ms over "
        f"{number(token.tokens_per_step)} prompt tokens of {number(token.load.prompts)} prompt(s), with "
        f"{number(token.load.sequences)} sequences decoding."
    )
    lines = [head, _verdict(token)]
    if token.split is not None:
        lines += _split_lines(token.kind, token.split, width)
    return lines + ([] if seen.prompt is None else _prompt_lines(seen.prompt))


def _prompt_lines(prompt: Prompt) -> list[str]:
    waited = max(prompt.ttft_s - prompt.prefill_s, 0.0)
    lines = [
        f"A prompt's first token came after {_ms(prompt.ttft_s)} ms: {_ms(waited)} waiting, "
        f"{_ms(prompt.prefill_s)} in the steps that computed it."
    ]
    if prompt.cached_tokens:
        spared = "" if prompt.spared_s is None else f", which would take {_ms(prompt.spared_s)} ms more"
        lines.append(
            f"Of its {number(prompt.tokens)} tokens {number(prompt.cached_tokens)} were found in the prefix "
            f"cache and not computed{spared}; while it decodes they are read all the same."
        )
    return lines


def _verdict(token: TokenTime) -> str:
    error = _signed(math.log(token.model_s / token.measured_s))
    off = f"The model says {_time(token.model_s)} ({error})"
    if token.left_out is None or token.allowed is None:
        return f"{off}; too few trials tell this time to state the model's error, so nothing is made of it."
    without = f"fitted without this trial it is off by {_signed(token.left_out)}"
    allowed = f"the other trials' errors allow {number(100 * percent(token.allowed))} %"
    if token.split is None and abs(token.left_out) <= token.allowed:
        return (
            f"{off}; {without}, where {allowed}: no exception, but the model is so far off in all trials "
            "that it does not explain this one. No split is given."
        )
    if token.split is None:
        return f"{off}; {without}, where {allowed}: the model does not explain this trial. No split is given."
    return f"{off}; {without}, where {allowed}."


def _split_lines(kind: Kind, split: Split, width: int | None) -> list[str]:
    unit, factor = _unit(split.total_s)
    table = Table()
    for heading in ("where it goes", f"{unit} a token", "95 %", "share"):
        table.add_column(heading, justify="left" if heading == "where it goes" else "right")
    for part in split.parts:
        words = _BESIDE_WORDS[kind] if part.name == BESIDE else _WORDS[part.name]
        interval = f"{number(factor * part.low)} to {number(factor * part.high)}"
        share = f"{100 * part.seconds / split.total_s:.0f} %"
        table.add_row(words, number(factor * part.seconds), interval, share)
    table.add_row("all", number(factor * split.total_s), "", "100 %")
    return [*_printed(table, width), _binds(split)]


def _binds(split: Split) -> str:
    other = "compute" if split.binds == "memory bandwidth" else "memory bandwidth"
    share = "" if split.bound_share > 0.995 else f" in {100 * split.bound_share:.0f} % of their time"
    words = (
        f"What binds the forward passes is {split.binds}{share}; {other} by itself would take "
        f"{_time(split.hidden_s)} a token."
    )
    engine = sum(part.seconds for part in split.parts if part.name in ("step_s", "sequence_s"))
    if engine > _MOSTLY * split.total_s:
        words += " But most of the time is the engine's own, which neither would shorten."
    return words


def _constants_lines(fitted: Sequence[Fitted], width: int | None) -> list[str]:
    table = Table()
    for heading in ("constant", "value", "95 %", "in the table", ""):
        table.add_column(heading, justify="left" if heading in ("constant", "") else "right")
    for one in fitted:
        _, factor, unit = _CONSTANTS[one.name.partition(" ")[0]]
        table.add_row(
            _constant_words(one.name),
            f"{number(one.value * factor)} {unit}",
            f"{number(one.low * factor)} to {number(one.high * factor)}",
            number(one.table * factor),
            _STANDINGS[one.standing],
        )
    notes = [note for standing, note in _STANDING_NOTES.items() if standing in {o.standing for o in fitted}]
    return ["The constants, fitted on all these trials:", *_printed(table, width), *notes]


def _error_lines(seen: Explanation, width: int | None) -> list[str]:
    lines = []
    for kind, errors in seen.fit.errors.items():
        lines += [
            f"A {kind} step in a trial that the fit has not seen: median error {100 * errors.median:.0f} %, "
            f"worst {100 * errors.worst:.0f} %, over {len(errors.trials)} trials.",
            *_printed(_residuals(errors), width),
        ]
    return [*lines, *_alone_notes(seen.fit)]


def _residuals(errors: Errors) -> Table:
    table = Table()
    for heading in ("trial", "measured, ms", "model, ms", "off by", "left out of the fit", "explained"):
        table.add_column(heading, justify="left" if heading == "explained" else "right")
    for one in errors.trials:
        table.add_row(
            str(one.trial),
            _ms(one.measured_s),
            _ms(one.model_s),
            _signed(one.fitted),
            _signed(one.left_out) + (" *" if one.alone else ""),
            "yes" if errors.explains(one.trial) else "no",
        )
    return table


def _alone_notes(fit: StepFit) -> list[str]:
    alone = {
        error.trial: error.alone for errors in fit.errors.values() for error in errors.trials if error.alone
    }
    return [
        f"* trial {trial} alone tells {', '.join(_constant_words(name) for name in names)}; left out, the "
        "accelerator table's value stood for it"
        for trial, names in sorted(alone.items())
    ]


def _constant_words(name: str) -> str:
    kind, _, scheme = name.partition(" ")
    return f"{_CONSTANTS[kind][0]} {scheme}".strip()


def _token_json(token: TokenTime) -> dict[str, Json]:
    split = token.split
    return {
        "measured_s": token.measured_s,
        "model_s": token.model_s,
        "step_s": token.step_s,
        "tokens_per_step": token.tokens_per_step,
        "load": dict(asdict(token.load)),
        "left_out_error": None if token.left_out is None else percent(token.left_out),
        "allowed_error": None if token.allowed is None else percent(token.allowed),
        "explained": split is not None,
        "parts": None if split is None else [dict(asdict(part)) for part in split.parts],
        "binds": None if split is None else split.binds,
        "bound_share": None if split is None else split.bound_share,
        "hidden_s": None if split is None else split.hidden_s,
    }


def _errors_json(errors: Errors) -> dict[str, Json]:
    return {
        "median": errors.median,
        "worst": errors.worst,
        "usable": errors.usable,
        "trials": [
            {
                "trial": one.trial,
                "measured_s": one.measured_s,
                "model_s": one.model_s,
                "error": percent(one.fitted),
                "left_out_error": percent(one.left_out),
                "explained": errors.explains(one.trial),
                "constants_told_by_it_alone": list(one.alone),
            }
            for one in errors.trials
        ],
    }


def _printed(table: Table, width: int | None) -> list[str]:
    page = StringIO()
    Console(file=page, width=width or max(Console().width, 100), force_terminal=False).print(table)
    return page.getvalue().rstrip().splitlines()


def _time(seconds: float) -> str:
    unit, factor = _unit(seconds)
    return f"{number(factor * seconds)} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    return ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)


def _ms(seconds: float) -> str:
    return number(1000 * seconds)


def _signed(logarithm: float) -> str:
    share = round(100 * percent(logarithm))
    return f"{share:+d} %" if share else "0 %"
