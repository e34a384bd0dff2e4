"""What may leave the machine: texts without the machine's folders. Pure.

An error says which file it is of, and where that lies is nobody's business who came over the network.
"""

import re
from collections.abc import Iterable

from search_spaces.values import Json

_PART = r"[^\s/'\"`,;:()\[\]{}<>|]+"
_PATH = re.compile(rf"(?<![\w./:~-])(?:(?:sqlite|file):/{{0,3}})?~?/(?:{_PART}/)+(?P<name>{_PART})?")


class Outside:
    """Blanks folders in texts."""

    def __init__(self, folders: Iterable[str]) -> None:
        """Args:
        folders: known ones, blanked wherever they stand, whatever characters are in them.
        """
        known = sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True)
        # "(?!)" is found nowhere.
        self._known = re.compile(rf"(?:{'|'.join(map(re.escape, known)) or '(?!)'})(?:/(?P<rest>{_PART}))*")

    def text(self, text: str) -> str:
        """The text with the last name only of every absolute path in it: `…/chat.jsonl`."""
        text = self._known.sub(lambda found: f"…/{found['rest'] or ''}", text)
        return _PATH.sub(lambda found: f"…/{found['name'] or ''}", text)

    def json(self, value: Json) -> Json:
        """The value with every text of it so."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.json(item) for item in value]
            case dict():
                return {self.text(key): self.json(item) for key, item in value.items()}
            case _:
                return value
