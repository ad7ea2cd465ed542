"""Tries to break what autothrottle promises, and looks in ZooKeeper's own log whether it did.

One run is one seed: a recovery on a simulated cluster that lives in a real ZooKeeper ensemble, with the services as
processes and a proxy on each of their connections. Processes are killed and stopped, connections are cut, held, delayed
and half-closed, servers of the ensemble go away, and somebody else edits configs meanwhile.

    schedule   what happens, a pure function of the seed
    proxy      connections that can break, and that can be held in the middle of a transaction
    stage      ensemble, cluster, services and the user of one run
    run        carries a schedule out
    checker    judges the transaction log, a pure function of it
    series     many seeds, some at the same time

`python -m autothrottle.lab.chaos` runs many seeds and prints a table; `make chaos` does it.
"""
