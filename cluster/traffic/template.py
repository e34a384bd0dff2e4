"""A model's chat template: messages to the text that its server makes tokens of.

Without it, what a chat shares would be told too low: the template's own tokens stand between the messages.
The environment is the one that templates are written for, as Hugging Face's documentation of chat templates
describes it, in a sandbox, since a template is code that came with a model.
"""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cluster.traffic.request import Message
from cluster.traffic.tokenizer import TokenizerError, model_file
from cluster.traffic.turns import as_text

Render = Callable[[Iterable[Message]], str]
"""Messages to text."""

_ALONE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@lru_cache(maxsize=4)
def load_render(model: str) -> Render | None:
    """The rendering of a model's chat template, ready for its answer; None where it has no template.

    Messages that the template refuses are put in a row as they are.

    Raises:
        TokenizerError: where its template is there and is none.
    """
    config = _config(model)
    source = _source(model, config)
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise TokenizerError(f"{model}: its chat template cannot be read: {error}") from error
    tokens = {name: _token(config.get(name)) for name in _TOKENS if name in config}

    def render(messages: Iterable[Message]) -> str:
        said = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return template.render(messages=said, tools=None, add_generation_prompt=True, **tokens)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError):
            return as_text(Message(role=one["role"], content=one["content"]) for one in said)

    return render


def _config(model: str) -> dict[str, object]:
    path = _found(model, _CONFIG)
    if path is None:
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def _source(model: str, config: dict[str, object]) -> str | None:
    """The template's text: a file of its own, or in the tokenizer's settings, the default one of several."""
    alone = _found(model, _ALONE)
    if alone is not None:
        return alone.read_text(encoding="utf-8")
    inside = config.get("chat_template")
    if isinstance(inside, list):
        named = {one.get("name"): one.get("template") for one in inside if isinstance(one, dict)}
        inside = named.get("default")
    return inside if isinstance(inside, str) else None


def _found(model: str, name: str) -> Path | None:
    try:
        return model_file(model, name)
    except TokenizerError:
        return None


def _token(value: object) -> object:
    """A special token's text, which may stand in an object."""
    return value.get("content") if isinstance(value, dict) else value


def _refuse(message: str) -> None:
    raise TemplateError(message)
