"""What Kafka and kafka-python say against a request, as core's errors: what was asked, of whom, and the fix."""

from __future__ import annotations

from autothrottle.adapters.kafka_admin.connections import Silence, kafka
from autothrottle.core.configs import MAX_VALUE_BYTES
from autothrottle.core.errors import AutothrottleError, Invalid, Missing, Unavailable

NOT_CONTROLLER: int = kafka.errors.NotControllerError.errno

_AUTHENTICATION = (
    kafka.errors.SaslAuthenticationFailedError,
    kafka.errors.UnsupportedSaslMechanismError,
    kafka.errors.IllegalSaslStateError,
    kafka.errors.AuthorizationError,
)
_MISSING = frozenset({"UnknownTopicOrPartitionError", "UnknownTopicIdError", "NoReassignmentInProgressError"})
_CREDENTIALS = "Fix: sasl.mechanism and sasl.jaas.config in the file that kafka-client-config names"
_RIGHTS = "Fix: grant this user Describe, Alter, DescribeConfigs and AlterConfigs on the cluster and on topics"
_TLS = "Fix: ssl.truststore.location in the file that kafka-client-config names, and the broker's certificate"
_PROTOCOL = (
    "Fix: look whether the broker is well, and whether security.protocol in the file that kafka-client-config "
    "names is that of this port"
)
_UNREACHABLE = "Fix: start it, or look at the network between; it is tried again"


class Unexplained(Unavailable):
    """A broker has failed at a request and does not say why, nor at which part of it."""


def silence_error(silence: Silence, whom: str) -> AutothrottleError:
    """Return why `whom` gave no response."""
    error = silence.error
    text = str(error)
    if isinstance(error, _AUTHENTICATION):
        return Invalid(f"{whom} refuses who we are: {text}. {_CREDENTIALS}")
    if isinstance(error, kafka.errors.UnknownBrokerIdError):
        return Unavailable(f"{whom} is unreachable: it is not registered. Fix: start it; it is tried again")
    if isinstance(error, kafka.errors.IncompatibleBrokerVersion):
        return Invalid(f"{whom} is too old or too new for this request: {text}. Fix: Kafka 2.4 to 4.x")
    if "Handshake failed" in text:
        return Unavailable(f"{whom} is unreachable by TLS: {text}. {_TLS}")
    if isinstance(error, kafka.errors.KafkaTimeoutError | kafka.errors.RequestTimedOutError):
        return Unavailable(f"{whom} is unreachable: no answer in time. {_UNREACHABLE}")
    if "socket disconnected" in text:
        return Unavailable(f"{whom} is unreachable: it closed the connection. {_PROTOCOL}")
    if isinstance(error, kafka.errors.KafkaError | OSError):
        return Unavailable(f"{whom} is unreachable: {text}. {_UNREACHABLE}")
    return Unavailable(f"{whom} cannot be asked: {error!r}. {_UNREACHABLE}")


def code_error(code: int, message: str | None, what: str) -> AutothrottleError:
    """Return Kafka's error code about `what`: Missing, Unavailable when a repetition may do, else Invalid."""
    kind = kafka.errors.for_code(code)
    name = kind.__name__
    text = f"Kafka answers for {what}: {name}" + (f", {message.rstrip('.')}" if message else "")
    if name in _MISSING:
        return Missing(f"{text}. Fix: look at the name; it may have been deleted or have ended meanwhile")
    if "Authorization" in name:
        return Invalid(f"{text}. {_RIGHTS}")
    if issubclass(kind, kafka.errors.UnknownError):
        return Unexplained(
            f"{text}. Fix: look at the broker's log, and for a value of more than {MAX_VALUE_BYTES} bytes"
        )
    if kind.retriable:
        return Unavailable(f"{text}. Fix: try again; if it stays, look at the broker's log")
    return Invalid(f"{text}. Fix: change what was asked for")
