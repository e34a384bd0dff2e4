"""Stands in for `vllm.entrypoints.openai.api_server`: starts at once, answers as vLLM does, fails by script.

Tests copy it into a folder as a package named vllm and put that on PYTHONPATH. Standard library only.
The script is JSON in the environment variable FAKE_VLLM.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SCRIPT = json.loads(os.environ.get("FAKE_VLLM", "{}"))
"""
say: lines to print before serving, `say_every_s` apart
hang: say nothing more and never serve
exit: status to exit with instead of serving
exit_warm: the same, where a launcher started it
taken_once: a file; the first start finds the port taken and makes it
stubborn: ignore SIGTERM
child: start a process that outlives this one
meet: write what this one was given into a `folder`, and go on once so many (`count`) have
max_num_seqs: what /server_info tells
resets: answers to /reset_prefix_cache in turn; the last one repeats
completions: "answer", "hang", "stall" (after one token), "die" (SIGKILL to itself), "refuse" (HTTP 400),
    "lose core" (HTTP 500, and unhealthy from then on) or "lose core unnoticed" (HTTP 500, and healthy)
delays_s: how long the completions wait, in turn and from the beginning again
mutter: a line to print at every completion
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name = ""
    requests: list[dict[str, object]] = []  # noqa: RUF012  # one server a process
    resets = 0
    finished = 0
    healthy = True

    def log_message(self, format: str, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        seqs = SCRIPT.get("max_num_seqs", 4)
        bodies: dict[str, object] = {
            "/health": "",
            "/version": {"version": "0.99.0"},
            "/v1/models": {"data": [{"id": self.name}]},
            "/server_info": {"vllm_config": {"scheduler_config": {"max_num_seqs": seqs}}},
            "/metrics": (
                f'vllm:num_requests_running{{model_name="{self.name}"}} 0.0\n'
                f'vllm:request_success_total{{model_name="{self.name}"}} {self.finished}\n'
            ),
            "/requests": self.requests,
        }
        if path == "/health" and not self.healthy:
            self.answer(503, "")
        elif path in bodies:
            self.answer(200, bodies[path])
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/reset_prefix_cache"):
            answers = SCRIPT.get("resets", [True])
            self.answer(200, {"success": answers[min(Handler.resets, len(answers) - 1)]})
            Handler.resets += 1
            return
        self.complete(json.loads(body))

    def complete(self, asked: dict[str, object]) -> None:
        self.requests.append(asked)
        if delays_s := SCRIPT.get("delays_s"):
            time.sleep(delays_s[(len(self.requests) - 1) % len(delays_s)])
        if line := SCRIPT.get("mutter"):
            print(line, flush=True)
        match SCRIPT.get("completions", "answer"):
            case "die":
                print(
                    "(EngineCore pid=1) ERROR 11-30 09:00:00 [core.py:1] RuntimeError: the core broke",
                    flush=True,
                )
                os.kill(os.getpid(), signal.SIGKILL)
            case "lose core":
                Handler.healthy = False
                self.answer(500, {"error": {"message": "EngineCore encountered an issue."}})
                return
            case "lose core unnoticed":
                self.answer(500, {"error": {"message": "EngineCore encountered an issue."}})
                return
            case "hang":
                time.sleep(600)
            case "refuse":
                self.answer(400, {"error": {"message": "maximum context length is 8 tokens"}})
                return
            case _:
                pass
        tokens = asked["max_tokens"]
        assert isinstance(tokens, int)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for count in range(1, tokens + 1):
            if count == 2 and SCRIPT.get("completions") == "stall":
                time.sleep(600)
            self.event({"choices": [{"text": "a", "finish_reason": None}], "usage": usage(count)})
        self.event({"choices": [], "usage": usage(tokens)})
        Handler.finished += 1
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, chunk: object) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def answer(self, status: int, body: object) -> None:
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}


def main() -> None:
    parser = argparse.ArgumentParser(prog="api_server.py")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    asked, _ = parser.parse_known_args()
    if SCRIPT.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in SCRIPT.get("say", []):
        print(line, flush=True)
        time.sleep(SCRIPT.get("say_every_s", 0.0))
    if SCRIPT.get("child"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if meet := SCRIPT.get("meet"):
        given = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "TMPDIR", "VLLM_CACHE_ROOT")}
        said = Path(meet["folder"], f".{os.getpid()}")
        said.write_text(json.dumps(given | {"port": asked.port, "name": asked.served_model_name}))
        said.rename(said.with_name(f"{os.getpid()}.json"))
        while len(list(Path(meet["folder"]).glob("[0-9]*.json"))) < meet["count"]:
            time.sleep(0.05)
    if SCRIPT.get("hang"):
        time.sleep(600)
    if "exit_warm" in SCRIPT and "launcher" in Path("/proc/self/cmdline").read_text():
        raise SystemExit(SCRIPT["exit_warm"])
    if "exit" in SCRIPT:
        raise SystemExit(SCRIPT["exit"])
    if (mark := SCRIPT.get("taken_once")) and not Path(mark).exists():
        Path(mark).touch()
        with socket.socket() as other:
            other.bind(("127.0.0.1", asked.port))
            other.listen()
            ThreadingHTTPServer(("127.0.0.1", asked.port), Handler)
    Handler.name = asked.served_model_name
    ThreadingHTTPServer(("127.0.0.1", asked.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
