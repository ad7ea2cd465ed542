"""JSON over HTTP: every route of /v1, and requests that the gateway refuses."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import statistics
import time
from datetime import timedelta

import pytest

from autothrottle.adapters.grpc import AdminServiceClient
from autothrottle.core.errors import Unavailable
from autothrottle.core.operators.sources import StoredOverride
from autothrottle.gateway.responses import HTTP_STATUS
from autothrottle.gateway.rest import bindings
from autothrottle.gateway.server import GatewayServer
from autothrottle.gateway.web import LARGE_BODIES, MAX_BODY_BYTES, SERVICE
from autothrottle.messages import CODES
from tests.builders import eventually, mb
from tests.unit.autothrottle.gateway.front import SLACK, Front

OVERRIDE = {
    "brokerId": 1001,
    "rateBytesPerSecond": "50000000",
    "autoremove": False,
    "beyondCapacity": False,
    "effect": "",
}
"""No planner leads here, so when it acts is unknown."""


def test_routes_and_methods_of_the_admin_service_correspond() -> None:
    routes = bindings(SERVICE)
    assert {route.method.full_name for route in routes} == {method.full_name for method in SERVICE.methods}
    assert len({(route.verb, route.path) for route in routes}) == len(routes)
    assert not any(method.client_streaming or method.server_streaming for method in SERVICE.methods)


def test_every_route_calls_its_method() -> None:
    moved, cancelled = '{"topic":"t1","partition":0,"replicas":[1001,1003]}', '{"topic":"t1","partition":0}'
    bodies = {
        "SetOverride": '{"rateBytesPerSecond":"1000000"}',
        "RequestCycle": "{}",
        "SubmitReassignment": f'{{"partitions":[{moved}]}}',
        "EstimateReassignment": f'{{"partitions":[{moved}]}}',
        "StartCatchUp": "{}",
        "Pause": '{"mode":"MODE_KEEP"}',
        "CancelReassignment": f'{{"partitions":[{cancelled}]}}',
        "CheckCancellation": f'{{"partitions":[{cancelled}]}}',
        "SetRequestQuota": '{"user":"anna","requestRate":"100"}',
    }
    queries = {"RemoveRequestQuota": "?user=anna"}
    with Front() as front:
        front.services.cluster.add_topic("t1", {0: (1001, 1002)})
        front.services.cluster.add_topic("lags", {0: (1002, 1001)})
        front.services.cluster.leave_isr("lags", 0, 1001)
        front.services.start_planners()
        eventually(lambda: front.ask("GET", "/v1/state").status == 200)
        for route in bindings(SERVICE):
            front.overrides.set_override(1001 if route.fields else None, StoredOverride(mb(7)))
            target = route.path.replace("{brokerId}", "1001") + queries.get(route.method.name, "")
            reply = front.ask(route.verb, target, bodies.get(route.method.name))
            assert reply.status == 200, (route, reply)
            assert set(reply.json) <= {field.json_name for field in route.method.output_type.fields}


def test_a_move_is_listed_and_cancelled_only_where_it_is_safe() -> None:
    rows = [{"topic": "t1", "partition": partition} for partition in (0, 1)]
    with Front() as front:
        cluster = front.services.cluster
        cluster.add_topic("t1", {0: (1001, 1002), 1: (1001, 1002)})
        cluster.submit_reassignment("t1", dict.fromkeys((0, 1), (1001, 1003)))
        cluster.grow(1003, "t1", 0, mb(5))
        cluster.join_isr("t1", 1, 1003)
        for broker_id in (1001, 1002):
            cluster.leave_isr("t1", 1, broker_id)
        front.services.start_planners()
        eventually(lambda: front.ask("GET", "/v1/state").status == 200)
        (move,) = front.ask("GET", "/v1/reassignments?withMoves=true").json["moves"]
        assert (move["partitions"], move["addingReplicas"], move["removingReplicas"]) == ([0, 1], [1003], [1002])
        checked = front.ask("POST", "/v1/reassignments/cancel/check", json.dumps({"partitions": rows})).json
        assert checked["effects"] == [
            {**rows[0], "replicas": [1001, 1002], "droppedReplicas": [1003], "bytesLost": str(mb(5))}
        ]
        cancelled = front.ask("POST", "/v1/reassignments/cancel", json.dumps({"partitions": rows})).json
        assert cancelled == {"cancelled": 1, "refused": checked["refused"]}
        assert cancelled["refused"][0]["reason"].startswith("it needs 1 of its original replicas [1001, 1002] alive")
        assert [cluster.topics["t1"][partition].moves for partition in (0, 1)] == [False, True]


def test_a_pause_is_set_and_resumed(front: Front) -> None:
    pause = front.ask("PUT", "/v1/pause", '{"mode":"MODE_CLEAR","reason":"a release"}').json["pause"]
    assert (pause["mode"], pause["reason"]) == ("MODE_CLEAR", "a release")
    assert "127.0.0.1" in pause["author"] and pause["time"].endswith("Z")
    current = front.services.pauses.read_pause()
    assert current is not None and current.reason == "a release"
    assert front.ask("DELETE", "/v1/pause").json == {"wasPaused": True}
    assert front.ask("DELETE", "/v1/pause").json == {"wasPaused": False}
    assert front.services.pauses.read_pause() is None


@pytest.mark.parametrize("body", [None, "{}", '{"mode":"MELT"}', '{"mode":"MODE_KEEP","who":"me"}'])
def test_an_invalid_pause_is_refused(front: Front, body: str | None) -> None:
    assert front.ask("PUT", "/v1/pause", body).status == 400
    assert front.services.pauses.read_pause() is None


def test_every_error_has_a_status() -> None:
    assert set(CODES.values()) <= HTTP_STATUS.keys()


def test_a_broker_override_is_set_read_listed_and_removed(front: Front) -> None:
    path = "/v1/brokers/1001/override"
    reply = front.ask("PUT", path, '{"rateBytesPerSecond":"50000000"}')
    override = OVERRIDE | {"etag": reply.headers["etag"].strip('"')}
    assert reply.json["override"] == override
    assert front.current() == {1001: (mb(50), False)}
    assert front.ask("GET", path).json == {"override": override}
    assert front.ask("GET", "/v1/override?brokerId=1001").json == {"override": override}
    assert front.ask("GET", "/v1/override?broker_id=1001").json == {"override": override}
    assert front.ask("GET", "/v1/overrides").json == {"overrides": [override], "warnings": []}
    assert front.ask("DELETE", path).json == {}
    reply = front.ask("GET", path)
    assert (reply.status, reply.json["code"]) == (404, "NOT_FOUND")
    assert "no throttle override is set for broker 1001" in reply.json["message"]


def test_the_cluster_override_is_set_and_removed(front: Front) -> None:
    reply = front.ask("PUT", "/v1/override", '{"rateBytesPerSecond":"7","autoremove":true}')
    etag = reply.headers["etag"].strip('"')
    assert reply.json["override"] == {
        "rateBytesPerSecond": "7",
        "autoremove": True,
        "etag": etag,
        "beyondCapacity": False,
        "effect": "",
    }
    assert front.current() == {None: (7, True)}
    assert front.ask("DELETE", "/v1/override").status == 200
    assert front.current() == {}
    assert front.ask("DELETE", "/v1/override").status == 404


def test_the_log_of_admin_names_the_gateways_caller(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    """The log named only the gateway, for every caller."""
    with caplog.at_level(logging.INFO, "autothrottle.audit"):
        front.ask("PUT", "/v1/override", '{"rateBytesPerSecond":"7"}')
        front.ask("POST", "/throttle/remove")
    client, through = r"127\.0\.0\.1:[0-9]+", r"through ipv4:127\.0\.0\.1:[0-9]+"
    logged = caplog.text.splitlines()
    assert re.search(rf"Override of the cluster set to 7 bytes/s by {client} {through}$", logged[0])
    assert re.search(rf"Override of the cluster removed by {client} {through}$", logged[1])


@pytest.mark.parametrize("path", ["/v1/override", "/v1/brokers/1001/override"])
def test_if_match_restricts_a_change_to_one_version(front: Front, path: str) -> None:
    body = '{"rateBytesPerSecond":"7"}'
    first = front.ask("PUT", path, body).headers["etag"]
    assert front.ask("GET", path).headers["etag"] == first
    second = front.ask("PUT", path, body, {"If-Match": first}).headers["etag"]
    assert second != first
    for verb, sent in (("PUT", body), ("DELETE", None)):
        reply = front.ask(verb, path, sent, {"If-Match": first})
        assert (reply.status, reply.json["code"]) == (409, "ABORTED")
        assert f"its etag is now {second.strip(chr(34))}; read it again" in reply.json["message"]
    assert front.ask("DELETE", path, None, {"If-Match": second}).status == 200
    assert front.current() == {}


def test_an_etag_may_be_given_in_the_body_or_the_url(front: Front) -> None:
    set_to_7 = front.ask("PUT", "/v1/override", '{"rateBytesPerSecond":"7"}').json["override"]
    set_to_8 = front.ask("PUT", "/v1/override", json.dumps(set_to_7 | {"rateBytesPerSecond": "8"}))
    assert set_to_8.status == 200
    assert front.ask("PUT", "/v1/override", json.dumps(set_to_7)).status == 409
    assert front.ask("DELETE", f"/v1/override?etag={set_to_7['etag']}").status == 409
    etag = set_to_8.json["override"]["etag"]
    assert front.ask("DELETE", f"/v1/override?etag={etag}", None, {"If-Match": f'"{etag}"'}).status == 200


@pytest.mark.parametrize(
    ("verb", "target", "if_match", "named"),
    [
        ("PUT", "/v1/override", "5", "one etag in quotes"),
        ("PUT", "/v1/override", "*", "one etag in quotes"),
        ("PUT", "/v1/override", 'W/"5"', "one etag in quotes"),
        ("PUT", "/v1/override", '"5", "6"', "one etag in quotes"),
        ("PUT", "/v1/override", '""', "one etag in quotes"),
        ("PUT", "/v1/override", '"x"', "give the etag of a response"),
        ("DELETE", "/v1/override?etag=6", '"5"', "6 in the URL and 5 in If-Match"),
        ("POST", "/v1/cycles", '"5"', "takes none"),
    ],
)
def test_an_unusable_if_match_header_is_refused(
    front: Front, verb: str, target: str, if_match: str, named: str
) -> None:
    front.overrides.set_override(None, StoredOverride(mb(7)))
    body = '{"rateBytesPerSecond":"9"}' if verb == "PUT" else None
    reply = front.ask(verb, target, body, {"If-Match": if_match})
    assert (reply.status, reply.json["code"]) == (400, "INVALID_ARGUMENT")
    assert named in reply.json["message"]
    assert front.current() == {None: (mb(7), False)}


def test_an_override_has_an_expire_time(front: Front) -> None:
    body = '{"rateBytesPerSecond":"7","expireTime":"2999-01-31T18:00:00Z"}'
    assert front.ask("PUT", "/v1/override", body).json["override"]["expireTime"] == "2999-01-31T18:00:00Z"
    reply = front.ask("PUT", "/v1/override", body.replace("2999", "1999"))
    assert reply.status == 400 and "give a later time" in reply.json["message"]
    assert front.ask("PUT", "/v1/override", body.replace("2999-01", "soon")).status == 400


def test_audit_records_name_the_gateways_caller(front: Front) -> None:
    etag = front.ask("PUT", "/v1/override", '{"rateBytesPerSecond":"7"}').json["override"]["etag"]
    front.ask("POST", "/throttle/remove")
    newest, before = front.ask("GET", "/v1/auditRecords?limit=2").json["records"]
    assert (newest["action"], before["action"]) == ("ACTION_REMOVE", "ACTION_SET")
    assert newest["before"]["etag"] == before["after"]["etag"] == etag
    assert re.fullmatch(r"127\.0\.0\.1:[0-9]+ through ipv4:127\.0\.0\.1:[0-9]+", newest["who"])
    assert front.ask("GET", "/v1/auditRecords?limit=1001").status == 400


def test_a_response_contains_warnings(front: Front) -> None:
    reply = front.ask("PUT", "/v1/brokers/77/override", '{"rateBytesPerSecond":"7"}')
    assert reply.status == 200
    assert ["77" in warning for warning in reply.json["warnings"]] == [True]


def test_without_a_leader_a_cycle_request_is_503(front: Front) -> None:
    reply = front.ask("POST", "/v1/cycles")
    assert (reply.status, reply.json["code"]) == (503, "UNAVAILABLE")
    assert "no planner leads" in reply.json["message"]


@pytest.mark.parametrize(
    ("verb", "target", "body", "named"),
    [
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"5","ratee":1}', "ratee"),
        ("PUT", "/v1/override", '{"override":{"rateBytesPerSecond":"5"}}', "override"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"five"}', "five"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":1.5}', "1.5"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":NaN}', "rateBytesPerSecond"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"9223372036854775808"}', "9223372036854775808"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"1000000000001"}', "outside of 1..1000000000000"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"-5"}', "-5"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"0"}', "override rate 0"),
        ("PUT", "/v1/override", "{}", "override rate 0"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"5","rateBytesPerSecond":"6"}', "twice"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"5","autoremove":"yes"}', "autoremove"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"5","brokerId":-1}', "-1"),
        ("PUT", "/v1/override", None, "body"),
        ("PUT", "/v1/override", "[]", "JSON object"),
        ("PUT", "/v1/override", "null", "JSON object"),
        ("PUT", "/v1/override", "rate=5", "body"),
        ("PUT", "/v1/override", b"\xff\xfe", "body"),
        ("PUT", "/v1/override", "[" * 60_000, "body"),
        # Half of a surrogate pair is not text: protobuf failed on it, and an error that quoted it could not be sent.
        ("PUT", "/v1/override", r'{"\ud800":1}', "surrogates not allowed"),
        ("POST", "/v1/reassignments/estimate", r'{"maxRatio":"\uDFFF"}', "surrogates not allowed"),
        # Numbers that Python cannot convert caused status 500 and a traceback in the log.
        ("PUT", "/v1/pause", '{"mode":Infinity}', "cannot convert float infinity to integer"),
        ("PUT", "/v1/pause", '{"mode":1e400}', "cannot convert float infinity to integer"),
        ("POST", "/v1/reassignments/estimate", '{"maxRatio":1' + "0" * 400 + "}", "int too large to convert to float"),
        # Python converts these, and the URL's query refuses them. Of two spellings, the last one counted.
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"7_7"}', "7_7"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"\u0667\u0667"}'.encode(), "\u0667\u0667"),
        ("PUT", "/v1/override", r'{"rateBytesPerSecond":"\u0667"}', "\u0667"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"+7"}', "+7"),
        ("PUT", "/v1/override", r'{"rateBytesPerSecond":"7\n"}', "7"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"5","brokerId":"1_0"}', "1_0"),
        ("PUT", "/v1/override", '{"rateBytesPerSecond":"5","rate_bytes_per_second":"6"}', "both of its spellings"),
        ("PUT", "/v1/override", r'{"rateBytesPerSecond":"5","expireTime":"203\u0660-01-31T18:00:00Z"}', "expireTime"),
        ("PUT", "/v1/pause", '{"mode":"1_0"}', "1_0"),
        ("POST", "/v1/reassignments/estimate", '{"maxRatio":"0_0.5"}', "0_0.5"),
        ("POST", "/v1/reassignments/estimate", '{"within":"1_0s"}', "1_0s"),
        ("POST", "/v1/reassignments", '{"partitions":[{"topic":"t","partition":"1_0","replicas":[1]}]}', "1_0"),
        ("POST", "/v1/reassignments", '{"partitions":[{"topic":"t","partition":1,"replicas":["1_0"]}]}', "1_0"),
        ("PUT", "/v1/override?brokerId=5", '{"rateBytesPerSecond":"5"}', "brokerId"),
        ("PUT", "/v1/brokers/5/override", '{"rateBytesPerSecond":"5","brokerId":6}', "brokerId"),
        ("PUT", "/v1/brokers/abc/override", '{"rateBytesPerSecond":"5"}', "abc"),
        ("PUT", "/v1/brokers/05/override", '{"rateBytesPerSecond":"5"}', "05"),
        ("PUT", "/v1/brokers/2147483648/override", '{"rateBytesPerSecond":"5"}', "2147483648"),
        ("PUT", "/v1/brokers/-1/override", '{"rateBytesPerSecond":"5"}', "broker id -1"),
        ("DELETE", "/v1/override?broker=5", None, "broker"),
        ("DELETE", "/v1/override?brokerId=", None, "brokerId"),
        ("DELETE", "/v1/override?brokerId=1001&brokerId=1001", None, "once"),
        ("DELETE", "/v1/override?brokerId=1001&broker_id=1001", None, "once"),
        ("DELETE", "/v1/override", '{"brokerId":1001}', "no body"),
        ("DELETE", "/v1/brokers/1001/override?brokerId=1001", None, "brokerId"),
        ("POST", "/v1/cycles", '{"wait":true}', "wait"),
        ("POST", "/v1/cycles?wait=true", None, "wait"),
    ],
)
def test_invalid_input_is_400_with_its_name_and_changes_nothing(
    front: Front, verb: str, target: str, body: str | bytes | None, named: str
) -> None:
    front.overrides.set_override(None, StoredOverride(mb(7)))
    front.overrides.set_override(1001, StoredOverride(mb(8)))
    before = front.current()
    reply = front.ask(verb, target, body)
    assert (reply.status, reply.json["code"]) == (400, "INVALID_ARGUMENT"), reply
    assert named in reply.json["message"]
    assert front.current() == before


def test_a_duplicate_name_among_many_is_found_fast(front: Front) -> None:
    """The gateway compared each name with all others. A body of 16 MB kept a thread and the process busy for a day."""
    names = [f'"n{number}":0' for number in range(60_000)]
    reply = front.ask("POST", "/v1/reassignments", "{" + ",".join([*names, names[-1]]) + "}")
    assert reply.status == 400 and "the body gives 'n59999' twice" in reply.json["message"]


def test_a_broker_id_in_the_body_may_repeat_that_of_the_path(front: Front) -> None:
    assert front.ask("PUT", "/v1/brokers/5/override", '{"rateBytesPerSecond":5,"brokerId":5}').status == 200
    assert front.current() == {5: (5, False)}


@pytest.mark.parametrize(
    ("verb", "target", "allowed"),
    [
        ("POST", "/v1/override", "DELETE, GET, HEAD, PUT"),
        ("PUT", "/v1/overrides", "GET, HEAD"),
        ("GET", "/v1/cycles", "POST"),
        ("POST", "/v1/brokers/5/override", "DELETE, GET, HEAD, PUT"),
        ("DELETE", "/", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_405_with_the_allowed_methods(front: Front, verb: str, target: str, allowed: str) -> None:
    reply = front.ask(verb, target)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
    assert allowed in reply.json["message"]


@pytest.mark.parametrize("target", ["/v1", "/v1/overrides/", "/v2/overrides", "/v1/brokers/5", "/favicon.ico"])
def test_an_unknown_route_is_404(front: Front, target: str) -> None:
    reply = front.ask("GET", target)
    assert (reply.status, reply.json["code"]) == (404, "NOT_FOUND")
    assert "GET /api lists all" in reply.json["message"]


def test_every_method_with_partitions_accepts_a_large_body(front: Front) -> None:
    """Estimates refused large bodies. A reassignment that could be submitted and cancelled could not be estimated."""
    many = {r.method.name: r for r in bindings(SERVICE) if "partitions" in r.method.input_type.fields_by_name}
    assert many.keys() == LARGE_BODIES.keys()
    answers = dict.fromkeys(("EstimateReassignment", "SubmitReassignment"), (404, "1997 more do not exist"))
    answers["CheckCancellation"] = (200, "none-0 does not exist")
    for name, route in many.items():
        replicas = {} if "Cancel" in name else {"replicas": [1001, 1002]}
        body = json.dumps({"partitions": [{"topic": "none", "partition": p, **replicas} for p in range(2_000)]})
        assert MAX_BODY_BYTES < len(body) < LARGE_BODIES[name]
        reply = front.ask(route.verb, route.path, body)
        status, text = answers.get(name, (503, "no planner leads"))
        assert reply.status == status and text in reply.text, (name, reply)


def test_a_plan_that_cuts_replicas_is_a_conflict_unless_a_field_allows_it(front: Front) -> None:
    front.services.cluster.add_topic("cut", {0: (1001, 1002)})
    plan = {"partitions": [{"topic": "cut", "partition": 0, "replicas": [1001]}], "validateOnly": True}
    reason = "cut-0 would have 1 replica instead of 2; to submit it nevertheless: --allow-fewer-replicas"
    reply = front.ask("POST", "/v1/reassignments", json.dumps(plan))
    assert (reply.status, reply.json) == (409, {"code": "ABORTED", "message": reason})
    listing = front.ask("POST", "/v1/reassignments", json.dumps({**plan, "skipRefused": True})).json
    partitions = [{"topic": "cut", "partition": 0}]
    assert listing["leftOut"] == [{"reason": reason, "partitions": partitions, "allowedBy": "allow_fewer_replicas"}]
    for name in ("allowFewerReplicas", "allow_fewer_replicas"):
        reply = front.ask("POST", "/v1/reassignments", json.dumps({**plan, name: True}))
        assert "no planner leads" in reply.text, "the planner is asked only for what is not refused"


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 10_000_000])
@pytest.mark.parametrize(("verb", "target"), [("PUT", "/v1/override"), ("POST", "/throttle?rate=5")])
def test_an_oversized_body_is_413(front: Front, verb: str, target: str, size: int) -> None:
    reply = front.ask(verb, target, b" " * size)
    assert reply.status == 413
    assert f"larger than {MAX_BODY_BYTES} bytes" in reply.text
    assert front.current() == {}


def test_a_body_of_the_maximum_size_is_accepted(front: Front) -> None:
    body = '{"rateBytesPerSecond":"5"}'
    assert front.ask("PUT", "/v1/override", body + " " * (MAX_BODY_BYTES - len(body))).status == 200


def test_a_page_of_another_site_cannot_change_anything(front: Front) -> None:
    """An operator's own browser sends a form to loopback without asking for permission."""
    for origin in ("http://elsewhere.example", "null", "http://["):
        assert front.ask("POST", "/throttle?rate=5", headers={"origin": origin}).status == 403
    assert front.current() == {}
    own = {"origin": f"http://{front.server.address}", **own_page(front)}
    assert front.ask("POST", "/throttle?rate=5", headers=own).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_cannot_change_anything_without_an_origin(front: Front, site: str) -> None:
    assert front.ask("POST", "/throttle?rate=5", headers={"sec-fetch-site": site}).status == 403
    assert front.current() == {}
    assert front.ask("GET", "/throttle", headers={"sec-fetch-site": site}).status == 200
    for own in ("same-origin", "none"):
        headers = {"sec-fetch-site": own, **own_page(front)}
        assert front.ask("POST", "/throttle?rate=5", headers=headers).status == 200


def own_page(front: Front) -> dict[str, str]:
    """The headers by which a page of the gateway shows that it is one."""
    reply = front.ask("GET", "/page/session")
    return {"cookie": reply.headers["set-cookie"].partition(";")[0], "x-csrf-token": reply.json["csrf"]}


@pytest.mark.parametrize("host", ["evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "localhost:x"])
@pytest.mark.parametrize("target", ["/throttle?rate=5", "/v1/overrides", "/"])
def test_a_page_whose_name_resolves_to_this_host_can_neither_read_nor_change_anything(
    front: Front, target: str, host: str
) -> None:
    """Origin and Host of such a page were equal, so it could set an override. Now only our own names are accepted."""
    host = host.format(port=front.server.address.rpartition(":")[2])
    headers = {"host": host, "origin": f"http://{host}"}
    assert front.ask("GET", target.partition("?")[0], headers=headers).status == 421
    if target.startswith("/throttle"):
        reply = front.ask("POST", target, headers=headers)
        assert (reply.status, "add the name to api-hosts" in reply.text) == (421, True)
    assert front.current() == {}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:80", "[::1]:80", "10.1.2.3", "ours.example:80"]
)
def test_own_names_addresses_and_api_hosts_are_accepted(host: str) -> None:
    with Front(hosts=("ours.example",)) as front:
        assert front.ask("GET", "/throttle", headers={"host": host}).status == 200


def test_oversized_headers_and_non_http_requests_are_400(front: Front) -> None:
    assert b" 400 " in sent(front, b"GET / HTTP/1.1\r\nx-large: " + b"x" * 40_000).splitlines()[0]
    assert b" 400 " in sent(front, b"\x16\x03\x01\x02\r\n\r\n").splitlines()[0]


def sent(front: Front, *parts: bytes) -> bytes:
    """Send some requests, the last one incomplete, then stay silent; return everything received."""
    host, port = front.server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SLACK) as connection:
        found = b""
        for part in parts[:-1]:
            connection.sendall(part)
            found += connection.recv(4096)
        connection.sendall(parts[-1])
        while chunk := connection.recv(4096):
            found += chunk
        return found


def test_a_slow_client_is_answered_408_and_blocks_no_other_client() -> None:
    body = b"PUT /v1/override HTTP/1.1\r\nhost: localhost\r\ncontent-length: 26\r\n\r\n{"
    with Front(header_seconds=0.5, body_seconds=0.5) as front:
        host, port = front.server.address.rsplit(":", 1)
        silent = [socket.create_connection((host, int(port)), timeout=SLACK) for _ in range(50)]
        assert front.ask("GET", "/throttle").status == 200
        for start in (b"", b"PUT /v1/overr", b"GET /throttle HTTP/1.1\r\nhost: localhost\r\n", body):
            answered = sent(front, start)
            assert answered.startswith(b"HTTP/1.1 408 "), answered
            assert b"within 0.5 s; send" in answered
        for connection in silent:
            connection.close()
        assert front.current() == {}


WHOLE = b"GET /throttle HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("parts", [(WHOLE, WHOLE, b"GET /thr"), (WHOLE + WHOLE + b"GET /thr",)])
def test_a_later_request_on_a_connection_has_its_own_time_limit(parts: tuple[bytes, ...]) -> None:
    """uvicorn's own timer for idle connections stops at the first byte."""
    with Front(header_seconds=0.5) as front:
        answered = sent(front, *parts)
        assert answered.count(b"no throttle override is set\n") == 2
        assert answered.count(b"HTTP/1.1 408 ") == 1


def test_an_address_in_use_is_refused_with_the_fix(front: Front) -> None:
    admin = AdminServiceClient(["127.0.0.1:1"])
    with pytest.raises(Unavailable, match=r"gateway cannot listen on .* Fix: .*--api-listen"):
        GatewayServer(admin, front.server.address)
    admin.close()


def test_without_an_admin_service_every_route_answers_503() -> None:
    admin = AdminServiceClient(["127.0.0.1:1"])
    with Front() as front, GatewayServer(admin, "localhost:0") as alone:
        assert alone.address.startswith("localhost:")
        front.server = alone
        for target in ("/v1/overrides", "/throttle"):
            reply = front.ask("GET", target)
            assert (reply.status, "admin is unavailable" in reply.text) == (503, True)
    admin.close()


def test_stop_finishes_requests_and_refuses_new_ones() -> None:
    with Front() as front:
        started = time.monotonic()
        front.server.stop()
        front.server.stop()
        assert time.monotonic() - started < SLACK
        with pytest.raises(ConnectionRefusedError):
            front.ask("GET", "/")


def test_stop_cuts_requests_after_its_grace() -> None:
    with Front() as front:
        host, port = front.server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=SLACK) as slow:
            head = b"PUT /v1/override HTTP/1.1\r\nhost: localhost\r\ncontent-length: 26\r\n"
            slow.sendall(head + b"expect: 100-continue\r\n\r\n")
            assert slow.recv(4096).startswith(b"HTTP/1.1 100 ")
            started = time.monotonic()
            front.server.stop(timedelta(seconds=0.2))
            assert time.monotonic() - started < 4


def test_responses_contain_64_bit_integers_as_strings(front: Front) -> None:
    front.overrides.set_override(None, StoredOverride(10**12))
    (override,) = json.loads(front.ask("GET", "/v1/overrides").text)["overrides"]
    assert override["rateBytesPerSecond"] == "1000000000000"


def test_answers_on_an_open_connection_are_not_delayed(front: Front) -> None:
    """The end of each answer waited for the client's acknowledgement, which Linux delays by at least 40 ms."""
    connection = http.client.HTTPConnection(front.server.address, timeout=SLACK)
    seconds = []
    for _ in range(21):
        begin = time.monotonic()
        connection.request("GET", "/v1/overrides")
        connection.getresponse().read()
        seconds.append(time.monotonic() - begin)
    connection.close()
    assert statistics.median(seconds) < 0.035
