"""Chaos tests: inject faults into a recovery, and check autothrottle's guarantees in ZooKeeper's transaction log.

One run has one seed. It is a recovery on a simulated cluster in a real ZooKeeper ensemble, with the services as
processes and a proxy on each of their connections. Faults kill and stop processes and servers of the ensemble, and cut,
hold, delay and half-close connections. Another user edits configs at the same time.

    schedule   the faults and edits of a run, a pure function of the seed
    proxy      connections that break on demand, and hold a request before or after the server executes it
    stage      ensemble, cluster, services and user of one run
    resources  the descriptors and threads of the service processes
    services   the service processes of a run, each behind its own link
    play       waits, and faults of services and links
    run        executes a schedule
    checker    finds violations in the transaction log, a pure function
    series     runs many seeds in parallel
    on_kafka   the same on real Kafka brokers

`make chaos` calls `python -m tests.chaos`, which runs many seeds and prints a table.
"""
