"""Against a server that speaks /v1/completions as vLLM 0.32 does, with a made-up model behind it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster.node.engine import EngineFailure
from cluster.node.probe import ask
from cluster.order import Cause, Probe
from objectives.answers import Answers, Unanswered

PROMPTS = ((5, 6, 7), (11,), (20, 21))
TOKENS = 4


def follows(context: list[int]) -> dict[int, float]:
    """The made-up model: the sum of what was said is likeliest, one more than that comes next."""
    likeliest = sum(context) % 97
    return {likeliest: -0.25, (likeliest + 1) % 97: -1.75, (likeliest + 2) % 97: -4.0}


def continuation(prompt: tuple[int, ...]) -> tuple[int, ...]:
    said = list(prompt)
    for _ in range(TOKENS):
        said.append(sum(said) % 97)
    return tuple(said[len(prompt) :])


class Server:
    """Serves while it is open; also the endpoint that a probe is given."""

    served_name = "made-up"

    def __init__(self) -> None:
        self.log: list[object] = []
        """Requests and resets, in order."""
        self.status = 200
        self.spoil: dict[str, object] = {}
        """Parts of a choice to put in place of its own; None takes a part away."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.log.append(body)
                answer = json.dumps(outer.completion(body)).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def reset_caches(self) -> None:
        self.log.append("reset")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def completion(self, body: dict[str, object]) -> object:
        if self.status != 200:
            return {"error": {"message": "no such thing"}}
        prompt = body["prompt"]
        assert isinstance(prompt, list)
        told = list(continuation(tuple(prompt)))[: int(str(body["max_tokens"]))]
        choice: dict[str, object] = {"token_ids": told}
        if "logprobs" in body:
            tops = [follows([*prompt, *told[:at]]) for at in range(len(told))]
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in told],
                "token_logprobs": [top[token] for token, top in zip(told, tops, strict=True)],
                "top_logprobs": [{f"token_id:{t}": value for t, value in top.items()} for top in tops],
            }
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [None, *(self._read(prompt, at) for at in range(1, len(prompt)))]
        choice |= self.spoil
        return {"choices": [{name: part for name, part in choice.items() if part is not None}]}

    def _read(self, prompt: list[int], at: int) -> dict[str, object]:
        top = follows(prompt[:at])
        ranked: dict[str, object] = {
            str(t): {"logprob": value, "rank": rank} for rank, (t, value) in enumerate(top.items(), 1)
        }
        beyond = {str(prompt[at]): {"logprob": -7.0, "rank": 61}}
        return ranked if prompt[at] in top else ranked | beyond

    @property
    def requests(self) -> list[dict[str, object]]:
        return [entry for entry in self.log if isinstance(entry, dict)]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def asked(server: Server, given: tuple[tuple[int, ...], ...] | None = None) -> Answers:
    found = ask(server, Probe(prompts=PROMPTS, tokens=TOKENS, continuations=given))
    assert isinstance(found, Answers)
    return found


def test_greedy_continuations_come_back_in_the_order_of_the_prompts(server: Server) -> None:
    found = asked(server)
    for prompt, answer in zip(PROMPTS, found.answers, strict=True):
        assert answer.greedy == answer.again == answer.apart == continuation(prompt)
        assert [one.token for one in answer.own] == list(answer.greedy)
        assert all(one.first == one.token and one.logprob == -0.25 for one in answer.own)


def test_a_reference_reads_its_own_continuation_and_others_read_the_one_they_are_given(
    server: Server,
) -> None:
    own = asked(server).answers[1].forced
    assert [one.token for one in own] == list(continuation((11,)))
    given = asked(server, ((1, 2), (40,), (41,))).answers
    (read,) = given[1].forced
    # After 11 the likeliest token is 11; 40 is none of the few that come back.
    assert (read.token, read.logprob, read.first) == (40, -7.0, 11)
    assert [token for token, _ in read.top] == [11, 12, 13]
    assert [len(answer.forced) for answer in given] == [2, 1, 1]


def test_caches_are_emptied_before_the_first_asking_and_kept_for_the_second(server: Server) -> None:
    asked(server, ((1,), (1,), (1,)))
    kinds = ["reset" if entry == "reset" else "forced" if "prompt_logprobs" in entry else "greedy"  # type: ignore[operator]
             for entry in server.log]  # fmt: skip
    assert kinds == ["reset", *["greedy"] * 6, *["forced"] * 3]


def test_a_reference_is_asked_once_more_with_empty_caches_to_show_its_own_noise(server: Server) -> None:
    asked(server)
    assert server.log.count("reset") == 2
    assert asked(server, ((1,), (1,), (1,))).answers[0].apart is None


def test_nothing_but_greedy_decoding_is_asked_whatever_the_models_own_settings(server: Server) -> None:
    asked(server)
    for body in server.requests:
        assert (body["temperature"], body["repetition_penalty"], body["top_p"]) == (0, 1, 1)
        assert body["model"] == "made-up"


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ({"token_ids": None}, "return_token_ids"),
        ({"logprobs": None}, "without logprobs"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": []}}, "do not go together"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [0], "top_logprobs": [{}]}}, "no id: 'a'"),
        ({"prompt_logprobs": None}, "without the prompt's logprobs"),
        ({"prompt_logprobs": [None]}, "without the prompt's logprobs"),
    ],
)
def test_answers_that_are_not_what_was_asked_for_give_a_reason_and_no_exception(
    server: Server, spoiled: dict[str, object], said: str
) -> None:
    server.spoil = spoiled
    found = ask(server, Probe(prompts=PROMPTS, tokens=TOKENS))
    assert isinstance(found, Unanswered)
    assert said in found.reason
    assert "\n" not in found.reason


def test_so_do_a_refusal_a_server_that_is_gone_and_a_cache_that_cannot_be_emptied(server: Server) -> None:
    probe = Probe(prompts=PROMPTS, tokens=TOKENS)
    server.status = 400
    assert ask(server, probe) == Unanswered(reason='HTTP 400: {"error": {"message": "no such thing"}}')

    class Stuck(Server):
        def reset_caches(self) -> None:
            raise EngineFailure(Cause.STUCK, "the prefix cache could not be emptied")

    stuck = Stuck()
    stuck.close()
    found = ask(stuck, probe)
    assert found == Unanswered(reason="stuck: the prefix cache could not be emptied")

    gone = Server()
    gone.close()
    found = ask(gone, probe)
    assert isinstance(found, Unanswered)
    assert "ClientConnectorError" in found.reason


def test_an_engine_without_words_says_that_it_has_none() -> None:
    assert ask(object(), Probe(prompts=PROMPTS, tokens=1)) == Unanswered(
        reason="this engine answers no words"
    )
