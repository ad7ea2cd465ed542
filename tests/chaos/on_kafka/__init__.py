"""Chaos tests on real Kafka brokers: the same kinds of faults, and faults of brokers.

Kafka cannot refuse a config write of an ended term. So the checker judges when a write begins, by the requests that the
proxies see, and whether the next leader repairs one that was on its way, by the controller's metadata log.

    schedule      the faults, edits and calls of a run, a pure function of the seed
    cluster       three brokers and a controller, with a proxy in front of each listener
    stage         a reassignment, the services and the operators of one run
    state         the history of the state store, and that of ZooKeeper
    state_topic   the history of a state topic
    state_replay  the replay that it follows from, a pure function of the records
    run           executes a schedule with faults of one broker at a time
    absences      executes one with an absence of all brokers, records of other clients, and client quotas
    other_client  the client that appends these records, and sets the quotas
    acknowledged  an operator who notices lost edits
    checker       finds violations, a pure function of the histories
    series        runs many seeds in parallel, and keeps their results
"""
