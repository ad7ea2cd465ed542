"""`throttlectl`: manages overrides, reassignments, state and cycles of a running autothrottle.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unavailable, 130 interrupted, 141 output closed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from autothrottle_client.command_line import call_of, completion, context, make_parser
from autothrottle_client.commands import EXIT_FAILED
from autothrottle_client.errors import AutothrottleError, Invalid, Missing, NotLeader, Unavailable
from autothrottle_client.tables import printable

EXIT_USAGE, EXIT_MISSING, EXIT_UNAVAILABLE = 2, 3, 4
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141

_STATUSES: dict[type[AutothrottleError], int] = {
    Invalid: EXIT_USAGE,
    Missing: EXIT_MISSING,
    Unavailable: EXIT_UNAVAILABLE,
    NotLeader: EXIT_UNAVAILABLE,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    try:
        status = _run(arguments)
        print(end="", flush=True)  # also valid without standard output
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Discard buffered output, otherwise the interpreter fails a second time when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except AutothrottleError as error:
        print(f"throttlectl: {printable(str(error))}", file=sys.stderr)
        return _STATUSES.get(type(error), EXIT_FAILED)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        parsed = make_parser().parse_args(arguments)
    except SystemExit as ended:  # argparse has printed the reason
        return ended.code if isinstance(ended.code, int) else EXIT_USAGE
    if parsed.command == "completion":
        print(completion(parsed.shell))
        return 0
    if parsed.command == "context":
        print(context(as_json=getattr(parsed, "output", "table") == "json"))
        return 0
    call = call_of(parsed)
    with call.admin:
        status: int | None = parsed.run(call)
        return status or 0


if __name__ == "__main__":
    sys.exit(main())
