import json
import warnings
from pathlib import Path

import pytest

from cluster.traffic.request import Message
from cluster.traffic.template import load_render
from cluster.traffic.tokenizer import TokenizerError

CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ bos_token }}be brief\n{% endif %}<{{ message['role'] }}>{{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = (Message(role="user", content=" hi "), Message(role="assistant", content="yes"))


def model(folder: Path, **config: object) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_messages_become_what_the_template_says(tmp_path: Path) -> None:
    render = load_render(model(tmp_path, chat_template=CHATML, bos_token={"content": "<s>"}))
    assert render is not None
    assert render(CHAT) == "<s>be brief\n<user>hi\n<assistant>yes\n<assistant>"


def test_a_template_in_a_file_of_its_own_goes_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("own {{ messages | length }}")
    render = load_render(model(tmp_path, chat_template=CHATML))
    assert render is not None
    assert render(CHAT) == "own 2"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    render = load_render(model(tmp_path, chat_template=several))
    assert render is not None
    assert render(CHAT) == "yes"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_render(model(tmp_path)) is None


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('roles must alternate') }}", "{{ messages[9].content.x }}"]
)
def test_what_the_template_refuses_stands_in_a_row(tmp_path: Path, source: str) -> None:
    render = load_render(model(tmp_path, chat_template=source))
    assert render is not None
    assert render(CHAT) == "user\n hi \nassistant\nyes\n"


def test_a_template_can_reach_nothing_of_the_machine(tmp_path: Path) -> None:
    source = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    render = load_render(model(tmp_path, chat_template=source))
    assert render is not None
    assert render(CHAT).startswith("user\n")


def test_a_template_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="its chat template cannot be read"):
        load_render(model(tmp_path, chat_template="{% for %}"))


def test_the_small_models_template_renders_as_transformers_does() -> None:
    folder = Path(__file__).parents[3] / "runs" / "models" / "SmolLM2-135M-Instruct"
    if not (folder / "tokenizer_config.json").is_file():
        pytest.skip("needs the small model: tuner prepare makes it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        said = [{"role": one.role, "content": one.content} for one in CHAT]
        theirs = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    render = load_render(str(folder))
    assert render is not None
    assert render(CHAT) == theirs
