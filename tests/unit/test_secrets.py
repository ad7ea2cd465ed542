"""Secrets are neither on a command line of the pages and of deploy/, nor in errors and log lines."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from pathlib import Path

import pytest

from autothrottle.core.errors import Invalid, Unavailable
from autothrottle.core.texts import without_secrets
from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.configuration_reader import InvalidConfiguration, parse
from autothrottle.runtime.logs import JsonFormat, TextFormat
from autothrottle_client import errors as client_errors
from autothrottle_client.contexts import read_contexts_file
from tests.pages import PAGES
from tests.paths import ROOT

FLAGS = sorted(name for name, option in OPTIONS.items() if option.secret)

ON_COMMAND_LINES = re.compile(
    rf"--?(?:{'|'.join(FLAGS)})[= ]"
    r"|--from-literal"
    r"|[Bb]earer (?!\$\{|TOKEN`)[\w.-]{5,}['\"]"
    r"|://[^\s/?#'\"@]*:[^\s'\"@/]+@"
    r"|(?:curl|mysql|psql)\b.* (?:-u|--user|--password)[= ]"
    r"|(?:password|secret|sasl\.jaas\.config)=\S+ --"
    r"|--(?:command-property|property|config) [\w.]*(?:password|jaas)[\w.]*=",
)


def test_no_command_line_in_the_pages_and_in_deploy_has_a_secret() -> None:
    """The flags of a process are in the list of processes, which every user of its host can read."""
    texts = {name: page for name, page in PAGES.items() if name != "docs/configuration.md"}
    for path in (ROOT / "deploy").rglob("*"):
        if path.is_file() and path.suffix not in (".json", ".txt"):
            texts[str(path.relative_to(ROOT))] = path.read_text("utf-8")
    assert {"api-key", "app-key"} <= {*FLAGS} and len(texts) > 30
    places = [
        f"{name}:{number}: {line}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if ON_COMMAND_LINES.search(line)
    ]
    assert places == []


@pytest.mark.parametrize(
    "line",
    [
        "autothrottle run --api-key abc",
        "metricsfetcher --app-key=abc",
        "kubectl create secret generic x --from-literal=KEY=abc",
        "curl -H 'Authorization: Bearer abcdef'",
        "curl -u anna:abc http://x",
        "autothrottle score --catalog postgresql://anna:abc@db/catalog",
    ],
)
def test_the_search_knows_the_forms_of_secrets_on_command_lines(line: str) -> None:
    assert ON_COMMAND_LINES.search(line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://anna:S3CRET@prometheus:9090/p cannot be read", "https://***@prometheus:9090/p cannot be read"),
        ("https://S3CRET@api.datadoghq.com", "https://***@api.datadoghq.com"),
        ("http://anna:S3CR@ET@collector:4317", "http://***@collector:4317"),
        ("s3://key:S3/CRET@bucket/log?region=eu", "s3://***@bucket/log?region=eu"),
        ("gs://S3CRET@bucket", "gs://***@bucket"),
        ("postgresql+psycopg2://anna:S3CRET@db:5432/catalog", "postgresql+psycopg2://***@db:5432/catalog"),
        ("sc://host:15002/;token=S3CRET;user_id=anna", "sc://host:15002/;token=***;user_id=anna"),
        ("abfss://c@a.dfs/x?sig=S3CRET&se=2030", "abfss://***@a.dfs/x?sig=***&se=2030"),
        ("http://b1:9100/metrics?access_token=S3CRET", "http://b1:9100/metrics?access_token=***"),
        ("ssl.keystore.password=S3CRET", "ssl.keystore.password=***"),
        (
            "sasl.oauthbearer.client.credentials.client.secret=S3CRET",
            "sasl.oauthbearer.client.credentials.client.secret=***",
        ),
        ('Login required username="a" password="S3 CRET";', 'Login required username="a" password=***;'),
        ("AWS_SECRET_ACCESS_KEY=S3CRET", "AWS_SECRET_ACCESS_KEY=***"),
        ("dd-api-key=S3CRET", "dd-api-key=***"),
        ("{'authorization': 'Bearer S3CRET.S3CRET-S3CRET/='}", "{'authorization': 'Bearer ***'}"),
        ("Authorization: Basic UzNDUkVUOlMzQ1JFVA== is refused", "Authorization: Basic *** is refused"),
        ("send `Authorization: Bearer TOKEN`; Basic authentication is off",) * 2,
        ("Fix: --api-tokens-file=/run/secrets/tokens", "Fix: --api-tokens-file=/run/secrets/tokens"),
        ("sasl.oauthbearer.token.endpoint.url=https://idp/t", "sasl.oauthbearer.token.endpoint.url=https://idp/t"),
        ('Fix: give username="..." password="...";', 'Fix: give username="..." password="...";'),
        ("throttle of topic a@b: rate=10", "throttle of topic a@b: rate=10"),
        ("PLAINTEXT://b1:9092 and anna@example.com", "PLAINTEXT://b1:9092 and anna@example.com"),
    ],
)
def test_users_in_uris_and_values_of_secrets_are_masked(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert str(Invalid(text)) == str(Unavailable(text)) == shown


@pytest.mark.parametrize("part", ["a-", "token-", "password", "a:", "://", "=", 'password="', "Bearer ", "Basic a"])
def test_a_long_text_is_masked_in_linear_time(part: str) -> None:
    """Two regular expressions took time in the square of a text, which others chose: 10 kB took 8 s in a log line."""
    start = time.perf_counter()
    without_secrets(f"{'://' * (part == 'a:')}{part * (200_000 // len(part))} =@")
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("format", [TextFormat(), JsonFormat()], ids=["text", "json"])
def test_log_lines_and_tracebacks_of_libraries_are_masked(format: logging.Formatter) -> None:
    """A library puts the whole URI into its error. Its traceback is logged where the error is not expected."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(format)
    log = logging.Logger("library", logging.DEBUG)
    log.addHandler(handler)
    try:
        raise OSError("postgresql://anna:S3CRET@db/catalog: connection refused")
    except OSError:
        log.exception("Cannot read %s", "s3://key:S3CRET@bucket/log")
    text = output.getvalue()
    assert "S3CRET" not in text and "***@bucket" in text and "***@db" in text
    if isinstance(format, JsonFormat):
        assert json.loads(text)["message"] == "Cannot read s3://***@bucket/log"


@pytest.mark.parametrize("key", ["hunter2", "'xK9/b+c'", '"S3CRET"'])
def test_a_secret_as_the_name_of_a_key_in_a_file_is_masked(key: str, tmp_path: Path) -> None:
    """A message about an unknown key showed it, also if it was a value without its key."""
    secret, file = key.strip("'\""), tmp_path / "file.toml"
    file.write_text(f"{key} = 1\n")
    with pytest.raises(InvalidConfiguration) as caught:
        parse([f"--config={file}"], {})
    assert "key *** of " in str(caught.value) and secret not in str(caught.value)
    file.write_text(f"[prod]\nadmin-addr = 'a:1'\n{key} = 'x'\n")
    with pytest.raises(client_errors.Invalid) as refused:
        read_contexts_file(file)
    assert "'***' of context 'prod'" in str(refused.value) and secret not in str(refused.value)
