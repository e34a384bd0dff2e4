"""Writes exchanges down as a trace, line by line, in a thread of its own so that no stream waits for it.

Each line is written whole and at once: whenever the recording ends, what is in the file is a trace. Text is
tokenised, hashed with a key that is never written, and let go.
"""

import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.traffic.blocks import BlockIds
from cluster.traffic.recording.exchange import Answered, Asked, Exchange, answered, asked
from cluster.traffic.request import MAX_TOKENS, Request, TraceError, to_line
from cluster.traffic.template import Render
from cluster.traffic.text import Encode
from cluster.traffic.turns import Turns, as_text

MOST_WAITING = 1000
"""Exchanges that may wait to be written; more are counted as lost, so that memory stays bounded."""

SWITCHING_S = 0.0002
"""After this long the writing thread lets a stream that waits go first."""

RECORDED = "recorded"


class Recorder:
    """Takes exchanges from a proxy and writes their requests. Leaving its context writes what still waits."""

    def __init__(
        self,
        out: Path,
        encode: Encode,
        *,
        block_tokens: int,
        render: Render = as_text,
        keep_text: bool = False,
    ) -> None:
        """Make the file.

        Args:
            out: the trace's file, which must not be there yet.
            encode: the served model's tokenizer.
            block_tokens: tokens in a block.
            render: the served model's chat template.
            keep_text: whether prompts and session ids as they came stay in the trace.

        Raises:
            TraceError: where there is such a file, or none can be made.
        """
        self._out = out
        self._encode = encode
        self._render = render
        self._keep_text = keep_text
        self._failed: Callable[[], object] = lambda: None
        self._blocks = BlockIds(block_tokens)
        self._turns = Turns()
        self._sessions: dict[str, str] = {}
        self._waiting: queue.Queue[Exchange | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="recorder")
        self.counts: Counter[str] = Counter()
        """Requests by what became of them; `RECORDED` are in the file."""
        self.error: OSError | None = None
        """Why nothing more can be written."""
        try:
            self._file = FileIO(out, "xb")
        except FileExistsError as error:
            raise TraceError([f"{out}: is there already: name another file, or remove it"]) from error
        except OSError as error:
            raise TraceError([f"{out}: cannot be written: {error.strerror or error}"]) from error

    def __enter__(self) -> Self:
        # By default a thread may keep the interpreter for 5 ms, and a stream would wait as long.
        self._switching_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCHING_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.put(None)
        self._thread.join()
        sys.setswitchinterval(self._switching_s)
        self._file.close()
        if not self.counts[RECORDED]:
            self._out.unlink(missing_ok=True)  # an empty file is no trace

    def on_failure(self, failed: Callable[[], object]) -> None:
        """Have this called, from the recorder's thread, when nothing more can be written."""
        self._failed = failed

    def take(self, exchange: Exchange) -> None:
        """Have an exchange written, without waiting."""
        try:
            self._waiting.put_nowait(exchange)
        except queue.Full:
            self.counts["lost: the recorder fell behind"] += 1

    def _write_all(self) -> None:
        while (exchange := self._waiting.get()) is not None:
            if self.error is not None:
                self.counts["lost: the file cannot be written"] += 1
                continue
            for request in self._requests(exchange):
                try:
                    self._file.write(to_line(request, self._blocks.block_tokens))
                except OSError as error:
                    self.error = error
                    self._failed()
                    break
                self.counts[RECORDED] += 1

    def _requests(self, exchange: Exchange) -> Iterator[Request]:
        prompts = asked(exchange)
        if not prompts:
            self.counts["not recorded: no text in the request that could be read"] += 1
            return
        for prompt, answer in zip(prompts, answered(exchange, len(prompts)), strict=True):
            request = self._request(exchange, prompt, answer)
            if request is None:
                self.counts["not recorded: no answer"] += 1
            else:
                yield request

    def _request(self, exchange: Exchange, prompt: Asked, answer: Answered) -> Request | None:
        """The request of one prompt; None where nothing was answered."""
        text = prompt.prompt if prompt.messages is None else self._render(prompt.messages)
        tokens = (
            self._encode(text) if prompt.token_ids is None and text is not None else prompt.token_ids or ()
        )
        length = answer.prompt_tokens or len(tokens)
        output = answer.output_tokens or len(self._encode(answer.thought + answer.text))
        if not (0 < length <= MAX_TOKENS and 0 < output <= MAX_TOKENS):
            return None
        return Request(
            arrival_s=exchange.arrival_s,
            duration_s=exchange.duration_s,
            input_length=length,
            output_length=output,
            hash_ids=self._blocks.of(tokens, length=length),
            session_id=self._session(exchange, prompt, answer, length),
            prompt=prompt.prompt if self._keep_text else None,
            messages=prompt.messages if self._keep_text else None,
        )

    def _session(self, exchange: Exchange, prompt: Asked, answer: Answered, length: int) -> str | None:
        """The session that the client named, else the one that its text goes on from."""
        if exchange.session_id is not None:
            if self._keep_text:
                return exchange.session_id
            return self._sessions.setdefault(exchange.session_id, f"c{len(self._sessions)}")
        if prompt.messages is not None:
            return f"s{self._turns.of_chat(prompt.messages, answer.text)}"
        if prompt.prompt is not None:
            return f"s{self._turns.of_prompt(prompt.prompt, answer.text, tokens=length, output=None)}"
        return None
