"""The traffic of a study: the space's own or another, checked against the model's context."""

from pathlib import Path

from cluster.traffic.make import make_trace, recipe_from
from cluster.traffic.trace import Trace, read_trace
from search_spaces.space import Space
from tuner.mistakes import Mistake


def study_trace(space: Space, path: str | None) -> tuple[Trace, str]:
    """The trace to replay, and where it came from in words.

    Args:
        path: a trace file that stands in for the space's own traffic.

    Raises:
        Mistake: the space has no traffic and none was given.
        TraceError: the trace can't be used, or asks for more than the model's context.
    """
    context = space.engine.get("max_model_len")
    longest = context if isinstance(context, int) else None
    traffic = space.traffic
    if path is None and traffic.trace is not None:
        path = _beside(space, traffic.trace)
    if path is not None:
        return read_trace(path, max_context=longest), path
    if traffic.make is None:
        raise Mistake(f"{space.source} names no traffic; give a trace with --trace")
    trace = make_trace(recipe_from(traffic.make, where=f"{space.source} traffic.make"))
    for index, request in enumerate(trace.requests):
        if longest is not None and request.input_length + request.output_length > longest:
            raise Mistake(
                f"{space.source} traffic.make: request {index} has {request.input_length} + "
                f"{request.output_length} tokens, over max_model_len {longest}; lower input_max or output_max"
            )
    return trace, f"made by {space.source}"


def _beside(space: Space, path: str) -> str:
    """A space's trace is looked for where the user stands, then beside the space file."""
    beside = Path(space.source).parent / path
    return str(beside) if not Path(path).exists() and beside.exists() else path
