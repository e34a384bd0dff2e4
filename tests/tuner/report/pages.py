"""An HTML page taken apart: what can be read of it, and whether it is one that stands alone."""

from html.parser import HTMLParser

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Fails where tags do not close in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.hovers: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def text(self) -> str:
        """What a person reads, style sheet and hover texts left out."""
        return " ".join(" ".join(self.words).split())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        (self.hovers if self.open[-1:] == ["title"] and "svg" in self.open else self.words).append(data)

    def _seen(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
