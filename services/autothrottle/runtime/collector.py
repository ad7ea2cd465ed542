"""How often Python looks for objects that only hold each other: rarely, since ours hardly ever do.

A snapshot of 100,000 partitions is made of some million objects. By default each 700 new ones start a look, and at
times one at all that there are: a quarter to a half of the time that a reading takes. What is no longer used goes
without it, by its count of references.
"""

from __future__ import annotations

import gc

_NEW_OBJECTS = 50_000
"""So many more than are gone start a look at the new ones: some 5 MB."""


def collect_rarely() -> None:
    """Set the process's collector for large snapshots; what was made so far is not looked at again.

    Call it once, when the modules are imported and before the service starts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 50, 100)
