"""Orders of trials for the real engine's code, with a stand-in for vLLM and a tokenizer for a model."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from cluster.order import Limits, Order
from cluster.traffic.request import Request
from cluster.traffic.trace import Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.values import Json


def install(folder: Path) -> None:
    """Put the stand-in and the model into this folder."""
    package = folder / "path" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for one in (package, *package.parents[:2]):
        (one / "__init__.py").touch()
    standin = Path(__file__).parents[1] / "node" / "fake_vllm_server.py"
    shutil.copy(standin, package / "api_server.py")
    model = folder / "model"
    model.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(model / "tokenizer.json"))


def order(folder: Path, number: int = 0, *, gpus: int = 0, script: dict[str, Json]) -> Order:
    """A trial that serves by this script, with what was installed in the folder."""
    requests = tuple(Request(arrival_s=0.01 * at, input_length=10, output_length=4) for at in range(4))
    model = str(folder / "model")
    return Order(
        study="s",
        number=number,
        model=model,
        arguments={},
        environment={"PYTHONPATH": str(folder / "path"), "FAKE_VLLM": json.dumps(script)},
        workload=Workload(trace=Trace(requests=requests), tokenizer=model),
        slo=Slo(),
        limits=Limits(stop_s=2.0),
        gpus=gpus,
    )
