"""A space as a person reads it, and as JSON: the tree of parameters, what each sets, how many configs.

Prints nothing; `tuner space show` does.
"""

from collections.abc import Iterator, Mapping

from search_spaces.measure import Capacity, Closed, Fixed, Measure
from search_spaces.parameters import Categorical, Choice, Parameter, Real, described
from search_spaces.sections import Quality
from search_spaces.settings import leaves
from search_spaces.space import Count, Space
from search_spaces.values import Json

_COLUMN = 34


def lines(space: Space) -> list[str]:
    """The space in lines of text. Counts configs, which can take some seconds."""
    return [
        f"space {space.name}" + (f": {space.help}" if space.help else ""),
        *_field("source", space.source),
        *_field("model", space.model),
        *_field("one trial", _resources(space)),
        *_field("always", ", ".join(_settings(space.engine, space.environment, None))),
        *_field("traffic", _traffic(space)),
        *_field("slo", ", ".join(f"{name} {limit:g}" for name, limit in space.slo.items())),
        *_field("measure", _measure(space.measure)),
        *_field("objectives", ", ".join(space.objectives)),
        *_field("quality", _quality(space.quality)),
        *_field("budget", f"{space.budget.trials} trials" if space.budget.trials else ""),
        "parameters",
        *_tree(space.parameters, "  "),
        *(["constraints"] if space.constraints else []),
        *(f"  {constraint.text}" for constraint in space.constraints),
        f"valid configs: {count_text(space.count())}",
    ]


def count_text(count: Count) -> str:
    """The number in words: "1,234", "about 120,000,000 (estimated by sampling)", "no end of them (…)"."""
    if count.configs is None:
        return "no end of them (a parameter without steps)"
    if count.exact:
        return f"{count.configs:,}"
    rounded = round(count.configs, 2 - len(str(count.configs)))
    return f"about {rounded:,} (estimated by sampling)"


def to_json(space: Space) -> dict[str, Json]:
    """The same as JSON; the tree keeps its shape, and every parameter says when it is active."""
    count = space.count()
    return {
        "name": space.name,
        "help": space.help,
        "source": space.source,
        "model": space.model,
        "engine": dict(space.engine),
        "environment": dict(space.environment),
        "resources": space.resources.model_dump(mode="json"),
        "parameters": [_parameter(parameter, {}) for parameter in space.parameters],
        "constraints": [constraint.text for constraint in space.constraints],
        "slo": dict(space.slo),
        "measure": space.measure.model_dump(mode="json"),
        "objectives": list(space.objectives),
        "traffic": space.traffic.model_dump(mode="json"),
        "budget": space.budget.model_dump(mode="json"),
        "quality": space.quality.model_dump(mode="json"),
        "trust_remote_code": space.trust_remote_code,
        "valid_configs": {"count": count.configs, "exact": count.exact},
    }


def _field(name: str, text: str) -> list[str]:
    return [f"{name:<11}{text}"] if text else []


def _resources(space: Space) -> str:
    gpus, cpus = space.resources.gpus, space.resources.cpus
    if gpus is None:
        parts = ["as many GPUs as its parallel sizes ask for"]
    else:
        parts = ["no GPU" if gpus == 0 else "1 GPU" if gpus == 1 else f"up to {gpus} GPUs"]
    if space.resources.accelerator:
        parts.append(space.resources.accelerator)
    return ", ".join([*parts, f"{cpus} CPU{'' if cpus == 1 else 's'}"])


def _traffic(space: Space) -> str:
    traffic = space.traffic
    if traffic.trace is not None:
        source = traffic.trace
    elif traffic.make is not None:
        source = "made: " + ", ".join(f"{name} {_value(value)}" for name, value in traffic.make.items())
    else:
        return ""
    sessions = "" if traffic.sessions == "recorded" else f", sessions {traffic.sessions}"
    return f"{source}; speed {traffic.speed:g}{sessions}, seed {traffic.seed}"


def _measure(measure: Measure) -> str:
    match measure:
        case Capacity():
            within = f"between {measure.lowest:g} and {measure.highest:g} times the speed"
            more = "" if measure.repeats == 1 else f"; {measure.repeats} replays at the speed itself"
            return f"capacity to {100 * measure.resolution:g} %, {within}{more}"
        case Fixed():
            return "fixed load" if measure.repeats == 1 else f"fixed load, {measure.repeats} replays"
        case Closed():
            return f"closed loop, {measure.concurrency} requests in flight"


def _quality(quality: Quality) -> str:
    kl = "" if quality.max_kl is None else f", KL at most {quality.max_kl:g}"
    return (
        f"NLL at most {quality.max_nll_increase:g} nats a token above the control's{kl}, agreement at least "
        f"{quality.min_agreement:g}; {quality.prompts} prompts, {quality.tokens} tokens each"
    )


def _tree(parameters: tuple[Parameter, ...], indent: str) -> Iterator[str]:
    for parameter in parameters:
        head = f"{indent}{parameter.path.rsplit('.', 1)[-1]}"
        if isinstance(parameter, Categorical) and parameter.named:
            yield f"{head:<{_COLUMN}}  {parameter.help}" if parameter.help else head
            for choice in parameter.choices:
                if isinstance(choice, Choice):
                    yield from _branch(choice, f"{indent}  ")
            continue
        yield _row(head, f"{described(parameter)}{_target(parameter)}", parameter.help)


def _branch(choice: Choice, indent: str) -> Iterator[str]:
    settings = ", ".join(_settings(choice.set, choice.environment, choice.model))
    yield _row(f"{indent}{choice.name}", settings or "sets nothing", choice.help)
    yield from _tree(choice.parameters, f"{indent}  ")


def _row(head: str, text: str, remark: str | None) -> str:
    return f"{head:<{_COLUMN}}  {text}" + (f"  ({remark})" if remark else "")


def _target(parameter: Parameter) -> str:
    """Where the value goes, unless that is the argument of the parameter's own name."""
    if parameter.environment is not None:
        return f" → environment {parameter.environment}"
    own = parameter.path.rsplit(".", 1)[-1]
    return "" if parameter.argument in (None, own) else f" → {parameter.argument}"


def _settings(
    arguments: Mapping[str, Json], environment: Mapping[str, str], model: str | None
) -> Iterator[str]:
    if model is not None:
        yield f"model = {model}"
    for path, value in leaves(arguments):
        yield f"{path} = {_value(value)}"
    for name, text in environment.items():
        yield f"{name}={text}"


def _value(value: Json) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _parameter(parameter: Parameter, when: Mapping[str, str]) -> dict[str, Json]:
    told: dict[str, Json] = {
        "path": parameter.path,
        "key": parameter.key,
        "when": dict(when),
        "help": parameter.help,
        "argument": parameter.argument,
        "environment": parameter.environment,
    }
    if not isinstance(parameter, Categorical):
        kind = "float" if isinstance(parameter, Real) else "int"
        return {**told, kind: [parameter.low, parameter.high], "step": parameter.step, "log": parameter.log}
    if not parameter.named:
        return {**told, "choices": list(parameter.values)}
    named = [choice for choice in parameter.choices if isinstance(choice, Choice)]
    return {**told, "choices": {choice.name: _choice(choice, parameter.path, when) for choice in named}}


def _choice(choice: Choice, path: str, when: Mapping[str, str]) -> dict[str, Json]:
    inside = {**when, path: choice.name}
    return {
        "set": dict(choice.set),
        "environment": dict(choice.environment),
        "model": choice.model,
        "help": choice.help,
        "parameters": [_parameter(parameter, inside) for parameter in choice.parameters],
    }
