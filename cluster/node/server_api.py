"""The few requests to a vLLM server that are not part of a replay: is it up, is it ours, reset, read back."""

import http.client
import json
import socket
from dataclasses import dataclass

from cluster.node.command import HOST
from search_spaces.values import Json


class Unreachable(Exception):
    """The server did not answer, or not with HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer, whatever its status."""

    status: int
    text: str

    @property
    def json(self) -> Json:
        """The body's JSON; None where it is none."""
        try:
            found: Json = json.loads(self.text)
        except ValueError:
            return None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerApi:
    """One server on this machine. Every request has a connection of its own, and no proxy."""

    port: int

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def healthy(self, timeout_s: float = 5.0) -> bool:
        """Whether /health says that the engine behind the server lives."""
        try:
            return self.get("/health", timeout_s=timeout_s).status == 200
        except Unreachable:
            return False

    def served_names(self) -> tuple[str, ...]:
        """The models that the server says it serves. Raises Unreachable."""
        match self.get("/v1/models").json:
            case {"data": list(models)}:
                return tuple(
                    str(model["id"]) for model in models if isinstance(model, dict) and "id" in model
                )
            case _:
                return ()

    def version(self) -> str | None:
        """vLLM's version as the running server says; None where it does not."""
        match self._text_of("/version"):
            case {"version": str(version)}:
                return version
            case _:
                return None

    def reset_prefix_cache(self, *, external: bool) -> bool:
        """Whether the prefix cache, and with `external` what it was offloaded to, is empty now.

        The body decides: the status is 200 even where blocks were still held. Versions without a body
        raised an error instead.
        """
        answer = self._ask("POST", f"/reset_prefix_cache?reset_external={str(external).lower()}", 30.0)
        match answer.json:
            case {"success": bool(success)}:
                return success
            case _:
                return answer.status == 200

    def works(self, model: str, *, timeout_s: float) -> bool:
        """Whether the engine behind the server gives a token, or a reason of its own why not.

        /health may go on answering 200 when the engine is dead; then a request fails as the server's fault.
        """
        body = json.dumps({"model": model, "prompt": [1], "max_tokens": 1})
        try:
            return self._ask("POST", "/v1/completions", timeout_s, body).status < 500
        except Unreachable:
            return False

    def get(self, path: str, *, timeout_s: float = 30.0) -> Answer:
        """Raises Unreachable."""
        return self._ask("GET", path, timeout_s)

    def _text_of(self, path: str) -> Json:
        try:
            return self.get(path).json
        except Unreachable:
            return None

    def _ask(self, method: str, path: str, timeout_s: float, body: str | None = None) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            connection.request(
                method, path, body, {} if body is None else {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            return Answer(status=response.status, text=response.read().decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method} {path}: {error}") from error
        finally:
            connection.close()


def free_port() -> int:
    """A TCP port that nobody listens on now; by the time it is used somebody may."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
