"""Tasks of the lm-eval library, run by it against a server: a last check on top of the verdict.

The library is an extra of its own (`pip install '.[quality]'`) and is loaded only when it is asked for. Most
of its tasks fetch their data from the Hugging Face Hub the first time; a folder of task files needs none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from objectives.statistics import CONFIDENCE
from tuner.mistakes import Mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """One metric of one task."""

    task: str
    metric: str
    value: float
    stderr: float | None
    """None where the library gives none."""
    higher_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that tasks are run against."""

    url: str
    """Its root, without `/v1`."""
    model: str
    """The name that it serves under."""
    key: str | None = field(default=None, repr=False)
    """Bearer token; None: it asks for none."""


def run_tasks(
    tasks: Sequence[str],
    server: Served,
    *,
    tokenizer: str,
    limit: int | None = None,
    folder: Path | None = None,
) -> tuple[TaskScore, ...]:
    """Run tasks against a server, one request at a time; their scores, in the library's order.

    Args:
        tasks: names, as `lm-eval --tasks` takes them.
        tokenizer: name or folder of the model's.
        limit: examples of each task; None: all of them.
        folder: of task files beside the library's own.

    Raises Mistake where the library is missing, or does not know a task, or cannot run one.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise Mistake(f"tasks need the lm-eval library: pip install '.[quality]' ({error})") from error
    try:
        manager = TaskManager(include_path=None if folder is None else str(folder))
        if unknown := [name for name in tasks if name not in manager.all_tasks]:
            raise Mistake(f"{unknown[0]!r} is no task of lm-eval; `lm-eval ls tasks` lists them")
        found = simple_evaluate(
            model="local-completions",
            model_args={
                "base_url": f"{server.url}/v1/completions",
                "model": server.model,
                "tokenizer": tokenizer,
                "tokenizer_backend": "huggingface",
                "header": _header(server),
            },
            tasks=list(tasks),
            limit=limit,
            log_samples=False,
            task_manager=manager,
        )
    except (OSError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        named, reason = ", ".join(tasks), " ".join(str(error).split())[:300]
        raise Mistake(f"lm-eval could not run {named}: {type(error).__name__}: {reason}") from error
    return scores_of(found or {})


def _header(server: Served) -> dict[str, str]:
    # Without one the library sends the variable OPENAI_API_KEY, whatever server this is.
    if server.key is None:
        return {"Accept": "application/json"}
    return {"Authorization": f"Bearer {server.key}"}


def scores_of(results: Mapping[str, Any]) -> tuple[TaskScore, ...]:
    """The scores among what the library returns; a filter other than "none" stays in its name."""
    scores = []
    for task, found in results.get("results", {}).items():
        better = results.get("higher_is_better", {}).get(task, {})
        for key, value in found.items():
            metric, _, rule = key.partition(",")
            if not rule or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            spread = found.get(f"{metric}_stderr,{rule}")
            scores.append(
                TaskScore(
                    task=task,
                    metric=metric if rule == "none" else f"{metric} ({rule})",
                    value=float(value),
                    stderr=float(spread) if isinstance(spread, int | float) else None,
                    higher_is_better=bool(better.get(metric, True)),
                )
            )
    return tuple(scores)


def worse(scores: Sequence[TaskScore], reference: Sequence[TaskScore]) -> tuple[str, ...]:
    """What is worse than the reference's by more than chance, one sentence each.

    One-sided, at 5 % over all that are compared (Bonferroni), as if the two were independent: the same
    examples were answered by both, so the real risk is smaller. A score without a standard error is worse
    where it is lower at all.
    """
    known = {(one.task, one.metric): one for one in reference}
    pairs = [(one, other) for one in scores if (other := known.get((one.task, one.metric))) is not None]
    if not pairs:
        return ()
    bound = float(ndtri(1 - (1 - CONFIDENCE) / len(pairs)))
    found = []
    for one, other in pairs:
        loss = other.value - one.value if one.higher_is_better else one.value - other.value
        noise = bound * math.hypot(one.stderr or 0.0, other.stderr or 0.0)
        if loss > noise:
            found.append(f"{one.task} {one.metric} is {one.value:.4g}, the reference's {other.value:.4g}")
    return tuple(found)
