"""Runs a door with many inputs, and collects what breaks the rule."""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from autothrottle.core.errors import AutothrottleError
from tests.fuzz.hostile import Choices

ENTROPY_BYTES = 24
"""Of one input; its id is this number in hexadecimal digits."""

INPUTS_OF_EXAMPLE = 50
"""One example of hypothesis is the entropy of many inputs: its own work for an example takes longer than an input."""

ROUND = 2_000
"""Inputs with one seed of hypothesis. The next round takes the next seed."""

HANG_SECONDS = 1.0
MOST_GROWTH_BYTES = 200_000_000
"""Growth of the process in one run. Inputs have at most 1 MB."""

MOST_MESSAGE = 10_000
"""Characters of the message of an error."""

MOST_ID = 2**31 - 1
"""Largest broker id and partition number."""

MOST_ADDRESSES = 6_000_000_000
"""Bytes of address space that a run may add; threads reserve much more than they use."""

SHOWN = 1_000
"""Characters of an input in a report."""


class Door(Protocol):
    """An edge of the product, and how to attack it."""

    name: str

    def make(self, choices: Choices) -> Any:
        """Return an input."""
        ...

    def check(self, attack: Any) -> None:
        """Give an input to the product and check the outcome.

        Raises:
            AutothrottleError: the product refused the input.
            AssertionError: the outcome breaks the rule; the message says how.
        """
        ...

    def close(self) -> None:
        """Release what the door holds."""
        ...


@dataclass(frozen=True, slots=True)
class Defect:
    """One way to break the rule, and the shortest input that did."""

    what: str
    """The error and its place."""
    id: str
    """Of the input: `--input ID` makes it again."""
    attack: str
    """The input, cut to `SHOWN` characters."""
    size: int
    """Length of the whole input as text."""


@dataclass(slots=True)
class Result:
    """What the inputs of one door did."""

    door: str
    inputs: int = 0
    accepted: int = 0
    """Inputs that ended in a value; all others were refused."""
    defects: dict[str, Defect] = field(default_factory=dict)
    """What -> its shortest input."""
    failures: int = 0
    """Inputs that broke the rule."""
    slowest: float = 0.0
    """Longest time of an input, seconds."""
    slowest_id: str = ""
    growth: int = 0
    """Growth of the process, bytes."""

    def add(self, defect: Defect) -> None:
        self.failures += 1
        known = self.defects.get(defect.what)
        if known is None or defect.size < known.size:
            self.defects[defect.what] = defect


def run(door: Door, count: int, first_seed: int, report: Callable[[Result], None] = lambda result: None) -> Result:
    """Attack a door with at least `count` inputs; call `report` after each round."""
    result, size, number = Result(door.name), resident_bytes(), first_seed
    with bounded_memory():
        while result.inputs < count:
            _run_round(door, min(ROUND, count - result.inputs), number, result)
            result.growth = max(result.growth, resident_bytes() - size)
            number += 1
            report(result)
    if result.growth > MOST_GROWTH_BYTES:
        result.add(Defect(f"the process has grown by {result.growth} bytes", "", "", 0))
    return result


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let an input that takes gigabytes fail with MemoryError, instead of taking the machine's memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _run_round(door: Door, count: int, number: int, result: Result) -> None:
    size = ENTROPY_BYTES * INPUTS_OF_EXAMPLE

    @seed(number)
    @example_settings(-(-count // INPUTS_OF_EXAMPLE))
    @given(st.binary(min_size=size, max_size=size))
    def attack(entropy: bytes) -> None:
        for piece in pieces(entropy):
            attack_once(door, piece, result)

    attack()


def example_settings(count: int) -> settings:
    """Return settings of hypothesis for so many new examples, none of them shrunk: the door collects the defects."""
    return settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )


def pieces(entropy: bytes) -> Iterator[bytes]:
    return (entropy[start : start + ENTROPY_BYTES] for start in range(0, len(entropy), ENTROPY_BYTES))


def attack_once(door: Door, entropy: bytes, result: Result) -> None:
    """Give one input to the product, and add its outcome to the result."""
    add_outcome(door, door.make(Choices(entropy)), entropy.hex(), result)


def add_outcome(door: Door, attack: Any, id: str, result: Result) -> None:
    """Give an input to the product, and add its outcome to the result; `id` is "" if the input has no entropy."""
    defect, seconds = outcome(door, attack)
    if seconds > HANG_SECONDS:  # twice, since the machine may have been busy
        seconds = min(seconds, outcome(door, attack)[1])
    if seconds > HANG_SECONDS:
        defect = defect or f"takes more than {HANG_SECONDS:g} s"
    if seconds > result.slowest:
        result.slowest, result.slowest_id = seconds, id
    result.inputs += 1
    result.accepted += defect is None
    if defect:
        shown = ascii(attack)
        result.add(Defect(defect, id, shown[:SHOWN], len(shown)))


def outcome(door: Door, attack: Any) -> tuple[str | None, float]:
    """Return the defect that an input shows, and the seconds that it took.

    None: the product accepted the input. "": it refused the input as it should.
    """
    began, defect = time.perf_counter(), None
    try:
        door.check(attack)
    except AutothrottleError as error:
        defect = unfit_message(error)
    except AssertionError as error:
        defect = str(error).partition("\n")[0]
    except Exception as error:
        defect = f"{type(error).__name__} at {place(error)}"
    return defect, time.perf_counter() - began


def table(results: Iterable[Result]) -> str:
    """Return one line for each door, and one for each defect with its shortest input."""
    lines = [f"{'door':<18}{'inputs':>9}{'refused':>9}{'defects':>9}{'slowest ms':>12}{'growth MB':>11}"]
    for result in results:
        refused = result.inputs - result.accepted - result.failures
        lines.append(
            f"{result.door:<18}{result.inputs:>9}{refused:>9}{len(result.defects):>9}"
            f"{result.slowest * 1000:>12.0f}{result.growth / 1e6:>11.0f}"
        )
        for defect in sorted(result.defects.values(), key=lambda found: found.what):
            lines += [f"  {defect.what}", f"    --input {defect.id}: {defect.attack}"]
    return "\n".join(lines)


def unfit_message(error: AutothrottleError) -> str:
    """Return what is wrong with the message of an error; "": nothing."""
    text = str(error)
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"the message of {type(error).__name__} is not UTF-8, at {place(error)}"
    return "" if len(text) < MOST_MESSAGE else f"the message of {type(error).__name__} is too long, at {place(error)}"


def place(error: BaseException) -> str:
    """Return the deepest line of the product in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/services/" in frame.filename or "/clients/" in frame.filename]
    frame = (own or list(frames))[-1]
    return f"{frame.filename.rpartition('/autothrottle')[2] or frame.filename}:{frame.lineno} ({frame.name})"


# What checks require.


def require(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def require_ids(name: str, numbers: Any, least: int = 0) -> None:
    require(
        all(type(n) is int and least <= n <= MOST_ID for n in numbers), f"{name} has a number outside {least}..2^31-1"
    )


def require_same(name: str, value: object, again: object) -> None:
    """Check a round trip. NaN differs from itself, so that it fails here as it should."""
    require(value == again, f"{name} changes in a round trip")


def require_bytes(name: str, numbers: Iterable[object]) -> None:
    require(all(type(n) is int and 0 <= n < 2**63 for n in numbers), f"{name} is outside 0..2^63-1")


def resident_bytes() -> int:
    """Return the largest size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
