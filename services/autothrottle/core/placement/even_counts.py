"""Even out counts over brokers along chains of moves: of leaderships within replica sets, or of replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def even_counts(
    loads: list[int],
    items: list[list[int]],
    options: Callable[[int, int], Iterable[int]],
    move: Callable[[int, int, int], None],
) -> None:
    """Move items until no chain of moves leads from a broker to one with at least two items fewer.

    Then no assignment is more even: neither the most nor the fewest items of a broker can improve.

    Source: Harvey, Ladner, Lovasz, Tamir: Semi-matchings for bipartite graphs and load balancing (2003).

    Args:
        loads: count of each broker; it is updated.
        items: the items of each broker that can move; they are updated.
        options: (item, its broker) -> the brokers that can take it.
        move: called with each item, its broker and its new broker.
    """
    settled = [False] * len(loads)
    while not all(settled):
        rest = [broker for broker, done in enumerate(settled) if not done]
        start = max(rest, key=loads.__getitem__)
        if loads[start] - min(loads[broker] for broker in rest) < 2:
            return
        path, reached = _path(start, loads, items, options, settled)
        if len({item for _, item, _ in path}) < len(path):
            # One item would move twice at once, and the options know only its current place.
            path, reached = [], [start]
        if not path:
            # Nothing that this broker reaches helps any broker with as many items or fewer.
            for broker in reached:
                settled[broker] = True
            continue
        for source, item, destination in path:
            items[source].remove(item)
            items[destination].append(item)
            move(item, source, destination)
        loads[start] -= 1
        loads[path[0][2]] += 1


def _path(
    start: int,
    loads: list[int],
    items: list[list[int]],
    options: Callable[[int, int], Iterable[int]],
    settled: list[bool],
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return the moves to a broker with two items fewer, last move first; and the brokers reached on the way."""
    limit = loads[start] - 2
    origin: dict[int, tuple[int, int]] = {start: (-1, -1)}
    queue = [start]
    for source in queue:
        for item in items[source]:
            for broker in options(item, source):
                if broker in origin or settled[broker]:
                    continue
                origin[broker] = (source, item)
                if loads[broker] <= limit:
                    return _moves(broker, origin), queue
                queue.append(broker)
    return [], queue


def _moves(end: int, origin: dict[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    moves = []
    while origin[end][0] >= 0:
        source, item = origin[end]
        moves.append((source, item, end))
        end = source
    return moves
