"""What mirrored nodes say, and which of them cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from autothrottle.adapters.zookeeper.mirror import ZnodeMirror
from autothrottle.core.errors import Invalid
from autothrottle.core.topology import Problem

log = logging.getLogger(__name__)

T = TypeVar("T")


class ParsedNodes:
    """Parses the nodes of a mirror, and notes what is wrong with them."""

    def __init__(self, mirror: ZnodeMirror) -> None:
        self._mirror = mirror
        self.problems: dict[str, Problem] = {}
        """Path -> why the node cannot be read."""

    def value(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the node's content; None when it is not there or, with a problem noted, cannot be read."""
        data = self._mirror.data(path)
        try:
            value = None if data is None else parse(data)
        except Invalid as error:
            if path not in self.problems:
                log.warning("%s: %s", path, error)
            self.problems[path] = Problem(path, str(error))
            return None
        self.problems.pop(path, None)
        return value
