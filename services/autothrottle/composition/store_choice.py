"""Refuses a start whose default state store would leave the state of an earlier version behind."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

from autothrottle.adapters.concurrency.subscriptions import seconds_left, time_left
from autothrottle.adapters.zookeeper.paths import OwnPaths
from autothrottle.adapters.zookeeper.session import connect, disconnect, translated_errors
from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.runtime.configuration import Configuration, StateStore

_TIMEOUT = timedelta(seconds=1)


def refuse_state_left_behind(configuration: Configuration, timeout: timedelta = _TIMEOUT) -> None:
    """Check that a store chosen by default leaves no state behind in the ZooKeeper of `zk_addr`, its default.

    A named store is not checked. If nothing listens there, this returns at once.

    Raises:
        Invalid: that ZooKeeper has our root node, or a server accepts connections and does not answer within `timeout`.
    """
    if configuration.state_store_given or configuration.state_store is not StateStore.KAFKA:
        return
    server, root = configuration.zk_addr[0], OwnPaths(configuration.zk_config_prefix).root
    try:
        has_state = _has_node(server, root, timeout)
    except Unavailable:
        raise Invalid(
            f"no state store is named, and the server at {server}, where earlier versions keep their state by default, "
            f"does not answer as a ZooKeeper within {timeout.total_seconds():g} s, so that its state is unknown. "
            "Fix: --state-store=zookeeper, or --state-store=kafka"
        ) from None
    if has_state:
        raise Invalid(
            f"no state store is named, and the ZooKeeper at {server} has autothrottle's state ({root}), which the "
            "default, state-store kafka, would leave behind. Fix: --state-store=zookeeper keeps it there, with "
            "--kafka-backend=zookeeper if that is Kafka's ZooKeeper, too; or move it with `autothrottle state export` "
            "and `autothrottle state import`, and give --state-store=kafka"
        )


def _has_node(server: str, path: str, timeout: timedelta) -> bool:
    """Whether a ZooKeeper has a node; False also if nothing listens.

    Raises:
        Unavailable: a server accepts connections and does not answer as a ZooKeeper.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout.total_seconds()).close()
    except TimeoutError as error:
        raise Unavailable(f"{server} does not accept a connection") from error
    except OSError:
        return False
    client = connect(server, timeout, time_left(deadline))
    try:
        with translated_errors(f"looking for {path}"):
            return client.exists_async(path).get(timeout=seconds_left(deadline)) is not None
    finally:
        disconnect(client)
