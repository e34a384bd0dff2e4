"""A model hub that serves one tiny model from memory, and remembers what it was asked."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" * 6 + "c0ff"
MODEL = "tea/small"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 100,
    "pytorch_model.bin": b"the same weights once more" * 100,
    "original/params.pth": b"and again" * 100,
}


class Hub:
    """What was asked of it.

    Attributes:
        downloads: how often each file's content was sent, by its path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.downloads: Counter[str] = Counter()


@contextmanager
def hub() -> Iterator[Hub]:
    """The hub, up on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            listed = f"/api/models/{MODEL}"
            if path in (listed, f"{listed}/revision/main", f"{listed}/revision/{COMMIT}"):
                files = [{"rfilename": name} for name in FILES]
                self._json({"id": MODEL, "sha": COMMIT, "siblings": files}, with_body)
            elif path.startswith(f"{listed}/tree/"):
                self._json([self._entry(name) for name in FILES], with_body)
            elif path.startswith(f"/{MODEL}/resolve/") and (name := path.split("/", 5)[5]) in FILES:
                self._file(name, with_body)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _entry(self, name: str) -> dict[str, object]:
            return {"type": "file", "path": name, "size": len(FILES[name]), "oid": _etag(name)}

        def _json(self, value: object, with_body: bool) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _file(self, name: str, with_body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(FILES[name])))
            self.send_header("ETag", f'"{_etag(name)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_body:
                seen.downloads[name] += 1
                self.wfile.write(FILES[name])

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _etag(name: str) -> str:
    return hashlib.sha1(FILES[name]).hexdigest()
