"""Translates errors of Kafka and kafka-python to core's errors, with the request, the broker and the fix."""

from __future__ import annotations

from autothrottle.adapters.kafka_admin.completeness import NOT_ANSWERED
from autothrottle.adapters.kafka_admin.connections import LOGIN_REFUSALS, NoResponse, kafka
from autothrottle.core.cluster.configs import MAX_VALUE_BYTES
from autothrottle.core.errors import AutothrottleError, Invalid, Missing, Unavailable

NOT_CONTROLLER: int = kafka.errors.NotControllerError.errno

_MISSING = frozenset({"UnknownTopicOrPartitionError", "UnknownTopicIdError", "NoReassignmentInProgressError"})
_CREDENTIALS = "Fix: sasl.* in the file that kafka-client-config names, or the rights of this user"
_RIGHTS = (
    "Fix: grant this user Describe, Alter, DescribeConfigs and AlterConfigs on the cluster and on topics, "
    "and Describe on groups"
)
_TLS = "Fix: ssl.truststore.location in the file that kafka-client-config names, and the broker's certificate"
_PROTOCOL = (
    "Fix: check that the broker is healthy, and that security.protocol in the file that kafka-client-config names "
    "fits this TCP port"
)
_MAX_REASON = 500
"""Characters of a broker's own message."""
_EXEMPTION = "Fix: exempt this client, see docs/quotas.md"
_UNREACHABLE = "Fix: start it, or check the network to it"


class Unexplained(Unavailable):
    """A broker failed at a request, and does not say why or at which part of it."""


def is_remembered(no_response: NoResponse) -> bool:
    """Whether kafka-python repeats this failure until its connections are replaced: a refused login, or a version."""
    return isinstance(no_response.error, (*LOGIN_REFUSALS, kafka.errors.IncompatibleBrokerVersion))


def no_response_error(no_response: NoResponse, peer: str) -> AutothrottleError:
    """Return why `peer` gave no response."""
    error = no_response.error
    text = str(error)
    if isinstance(error, AutothrottleError):  # the source gave no token for the login
        return error
    if isinstance(error, LOGIN_REFUSALS):
        return Invalid(f"{peer} refuses our credentials: {text}. {_CREDENTIALS}")
    if isinstance(error, kafka.errors.UnknownBrokerIdError):
        return Unavailable(f"{peer} is unreachable: it is not registered. Fix: start it")
    if isinstance(error, kafka.errors.IncompatibleBrokerVersion):
        return Invalid(f"{peer} is too old or too new for this request: {text}. Fix: Kafka 2.4 to 4.x")
    if "CERTIFICATE_VERIFY_FAILED" in text:  # waiting does not help
        return Invalid(f"{peer} is not trusted: {text}. {_TLS}")
    if "Handshake failed" in text:
        return Unavailable(f"{peer} is unreachable by TLS: {text}. {_TLS}")
    if isinstance(error, kafka.errors.KafkaTimeoutError | kafka.errors.RequestTimedOutError):
        return Unavailable(f"{peer} is unreachable: no answer in time. {_UNREACHABLE}")
    if isinstance(error, kafka.errors.NodeNotReadyError):
        return Unavailable(f"{peer} delays our requests, because a client quota is exceeded. {_EXEMPTION}")
    if "socket disconnected" in text:
        return Unavailable(f"{peer} is unreachable: it closed the connection. {_PROTOCOL}")
    if isinstance(error, kafka.errors.KafkaError | OSError):
        return Unavailable(f"{peer} is unreachable: {text}. {_UNREACHABLE}")
    return Unavailable(f"{peer} cannot be queried: {error!r}. {_UNREACHABLE}")


def code_error(code: int, message: str | None, what: str) -> AutothrottleError:
    """Translate Kafka's error code about `what`: Missing, Unavailable if a retry may help, else Invalid."""
    if code == NOT_ANSWERED:
        return Unavailable(f"Kafka's answer lacks {what}. Fix: try again; if it persists, check the broker's log")
    kind = kafka.errors.for_code(code)
    name = kind.__name__
    text = f"Kafka answers for {what}: {name}" + (f", {message[:_MAX_REASON].rstrip('.')}" if message else "")
    if name in _MISSING:
        return Missing(f"{text}. Fix: check the name; it may have been deleted, or the reassignment may have ended")
    if "Authorization" in name:
        return Invalid(f"{text}. {_RIGHTS}")
    if issubclass(kind, kafka.errors.UnknownError):
        return Unexplained(
            f"{text}. Fix: check the broker's log, and look for a value of more than {MAX_VALUE_BYTES} bytes"
        )
    if kind.retriable:
        return Unavailable(f"{text}. Fix: try again; if it persists, check the broker's log")
    return Invalid(f"{text}. Fix: change the request")
