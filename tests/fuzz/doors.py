"""The doors by name. Each is made when it is attacked: some start services."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.fuzz.admin_responses import AdminResponses
from tests.fuzz.exporter_texts import ExporterTexts
from tests.fuzz.grpc_messages import GrpcMessages
from tests.fuzz.http_requests import HttpRequests
from tests.fuzz.log_files import LogFiles
from tests.fuzz.metrics_answers import MetricsAnswers
from tests.fuzz.series import Door
from tests.fuzz.state_records import StateRecords
from tests.fuzz.znodes import Znodes

DOORS: Mapping[str, Callable[[], Door]] = {
    "znodes": Znodes,
    "state": StateRecords,
    "admin": AdminResponses,
    "exporters": ExporterTexts,
    "metrics": MetricsAnswers,
    "grpc": GrpcMessages,
    "http": HttpRequests,
    "log": LogFiles,
}
"""Name on the command line -> what makes the door."""
