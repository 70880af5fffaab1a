"""Stop strings over text that arrives in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Collects a row's text and ends it before the stop string that is completed first.

    Of several completed by the same character the longest counts.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = [stop for stop in stops if stop]
        self._overlap = max((len(stop) for stop in self._stops), default=1) - 1
        self._pieces: list[str] = []
        self._length = 0
        self._tail = ""  # the end of what was searched: a stop string may begin in it
        self.stopped = False

    def push(self, text: str) -> bool:
        """Append text; True once a stop string is complete. What follows it is dropped."""
        if self.stopped or not text:
            return self.stopped
        searched = self._tail + text
        found = self._first_completed(searched)
        self._pieces.append(text)
        if found is not None:
            start = self._length - len(self._tail) + found
            self._pieces = ["".join(self._pieces)[:start]]
            self.stopped = True
            return True
        self._length += len(text)
        self._tail = searched[-self._overlap :] if self._overlap else ""
        return False

    def pass_over(self, text: str) -> None:
        """Append text in which no stop string counts, nor begins."""
        self._pieces.append(text)
        self._length += len(text)
        self._tail = ""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def _first_completed(self, text: str) -> int | None:
        """Where the stop string with the earliest end begins."""
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None
