"""What rows with text do not say themselves: their lengths, their blocks, their sessions."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from cluster.traffic.blocks import BlockIds
from cluster.traffic.formats.row import Dropped, Row, Rows
from cluster.traffic.request import MAX_TOKENS, TraceError
from cluster.traffic.template import Render
from cluster.traffic.text import Encode
from cluster.traffic.turns import Turns


class Measuring:
    """Completes a file's rows, one by one, and remembers what a reader of the trace must know."""

    def __init__(self, path: Path, encode: Encode | None, render: Render, block_tokens: int) -> None:
        self._path = path
        self._render = render
        self._encode = encode
        self._blocks = BlockIds(block_tokens)
        self._turns = Turns()
        self._recognised: Counter[str] = Counter()
        """Requests of each session that was found out."""
        self._unhashed = 0
        self._limits = 0

    def rows(self, rows: Rows) -> Rows:
        """The rows, those with text given the lengths they lack, the blocks they are of, and a session.

        Raises:
            TraceError: where a length must be counted and there is no tokenizer to do it.
        """
        for row in rows:
            if isinstance(row, Dropped):
                yield row
                continue
            self._limits += row.output_is_limit
            if row.hash_ids or (row.prompt is None and row.messages is None and row.token_ids is None):
                yield row
            else:
                yield self._in_session(self._counted(row))

    def notes(self) -> list[str]:
        """What was assumed or found out, one sentence each."""
        notes: list[str] = []
        several = [count for count in self._recognised.values() if count > 1]
        if several:
            notes.append(
                f"{len(several)} sessions of {sum(several)} requests were recognised: prompts that go on "
                "from an earlier one and its answer"
            )
        if self._unhashed:
            notes.append("prefix sharing was not found out: that needs a model, for its tokenizer")
        if self._limits:
            notes.append(
                f"{self._limits} output lengths are the most that was asked for (max_tokens), since the log "
                "has no answers: true ones are shorter"
            )
        return notes

    def _counted(self, row: Row) -> Row:
        text = row.prompt if row.prompt is not None else self._render(row.messages or ())
        tokens = row.token_ids
        if tokens is None and self._encode is not None:
            tokens = tuple(self._encode(text))
        output = row.output_length
        if output is None and row.answer is not None and self._encode is not None:
            output = len(self._encode(row.answer))
        missing = (row.input_length is None and tokens is None) or (output is None and row.answer is not None)
        if missing and self._encode is None:
            raise TraceError(
                [f"{self._path}:{row.line}: its tokens must be counted: give a model, for its tokenizer"]
            )
        if tokens is None:
            self._unhashed += 1
            return row
        length = len(tokens) if row.input_length is None else row.input_length
        # A length out of range is dropped by what follows; making its blocks first would only cost memory.
        ids = self._blocks.of(tokens, length=length) if length <= MAX_TOKENS else ()
        return replace(
            row,
            input_length=length,
            output_length=output,
            hash_ids=ids,
            block_tokens=self._blocks.block_tokens,
        )

    def _in_session(self, row: Row) -> Row:
        """The row with its session: the one it names, or the one that its text goes on from."""
        if row.session_id is not None:
            return row
        if row.messages is not None:
            number = self._turns.of_chat(row.messages, row.answer)
        elif row.prompt is not None:
            given = None if row.output_is_limit else row.output_length
            number = self._turns.of_prompt(row.prompt, row.answer, tokens=row.input_length or 0, output=given)
        else:
            return row
        session = f"recognised-{number}"
        self._recognised[session] += 1
        return replace(row, session_id=session)

    def is_alone(self, session_id: str | None) -> bool:
        """Whether a session was found out and is one request only, which is none."""
        return session_id is not None and self._recognised.get(session_id) == 1
