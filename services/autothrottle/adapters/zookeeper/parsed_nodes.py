"""Parses mirrored nodes and records the problems of unreadable ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from autothrottle.adapters.zookeeper.mirror import ZnodeMirror
from autothrottle.core.cluster.snapshot import Problem
from autothrottle.core.errors import Invalid

log = logging.getLogger(__name__)

T = TypeVar("T")


class ParsedNodes:
    """Parses the nodes of a mirror, and records which of them cannot be parsed."""

    def __init__(self, mirror: ZnodeMirror) -> None:
        self._mirror = mirror
        self.problems: dict[str, Problem] = {}
        """Path -> why the node cannot be parsed."""

    def value(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the node's parsed content; None: it does not exist, or cannot be parsed and has a problem recorded."""
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
