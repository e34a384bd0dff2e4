"""Requests whose chunks come with steps of one length."""

from objectives.measurement import Record

STEP_S = 0.1


def stream(
    request: int,
    *,
    first_s: float,
    steps: int,
    prompt: int = 100,
    cached: int | None = 0,
    prefill_s: float | None = 0.3,
    tokens_a_step: int = 1,
    step_s: float = STEP_S,
    sent_s: float | None = None,
) -> Record:
    """A request whose first token comes at `first_s` and a step's tokens every `step_s` after that."""
    chunks = tuple(first_s + step_s * step for step in range(steps + 1))
    tokens = tuple(1 + tokens_a_step * step for step in range(steps + 1))
    sent = first_s - (prefill_s or 0.3) if sent_s is None else sent_s
    return Record(
        request=request,
        due_s=sent,
        sent_s=sent,
        chunk_s=chunks,
        chunk_tokens=tokens,
        finished_s=chunks[-1],
        tokens_in=prompt,
        tokens_out=tokens[-1],
        tokens_asked=tokens[-1],
        cached_tokens=cached,
        server_ttft_s=prefill_s,
    )
