"""Trials that share a node: `python -m tests.cluster.dispatch.sharing_driver ADDRESS FOLDER COUNT`.

So many, of one GPU each, whose engines serve only once all have met in the folder. Prints what became of
each.
"""

import json
import sys
from pathlib import Path

from cluster.dispatch.on_ray import OnRay
from cluster.node.vllm_server import VllmEngine
from cluster.order import Failed
from search_spaces.values import Json
from tests.cluster.dispatch.fake_vllm import install, order


def main(address: str, folder: str, count: str) -> None:
    here, together = Path(folder), int(count)
    install(here)
    (here / "meeting").mkdir()
    script: dict[str, Json] = {"child": True, "meet": {"folder": str(here / "meeting"), "count": together}}
    with OnRay(VllmEngine(), address) as dispatch:
        for number in range(together):
            dispatch.submit(order(here, number, gpus=1, script=script))
        found: list[Json] = []
        while len(found) < together:
            ended = dispatch.next(120)
            if ended is not None:
                outcome = ended[1]
                why = outcome.reason if isinstance(outcome, Failed) else "measured"
                found.append([why, outcome.ran.node, outcome.ran.launch])
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
