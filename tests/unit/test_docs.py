"""README and docs match the product: links, options, make targets, routes, and every command in a code block."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import pytest
from docs.generate import configuration_page
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.routing import Route

from autothrottle import rate_limiters
from autothrottle.__main__ import main
from autothrottle.gateway import legacy, rest
from autothrottle.gateway.live import AdminReading, LiveView
from autothrottle.gateway.web import EVENTS_PATH, SERVICES, application
from autothrottle.rate_limiters import BUILT_IN
from autothrottle.replay import changed_settings
from autothrottle.replay import make_parser as make_replay_parser
from autothrottle.runtime.access import Access
from autothrottle.runtime.command_line import COMMANDS
from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.configuration_reader import parse, parse_command
from autothrottle.runtime.option_kinds import declared_options
from autothrottle.runtime.sources import by_any_name
from autothrottle.scorer.command import make_parser as make_score_parser
from autothrottle.scorer.compaction import make_parser as make_compact_parser
from autothrottle.topicmappr.options import COMMAND_OPTIONS, FETCHER_PREFIX, PREFIX, FetcherOptions
from autothrottle.v1 import admin_pb2, planner_pb2
from autothrottle.wire.common import Metadata
from autothrottle_client import AdminClient, Cycle, control_plane, kafka_pacing, pacing
from autothrottle_client.contexts import CONTEXTS_VARIABLE, read_contexts
from autothrottle_client.pacing import find_rate_limiter
from autothrottle_client.suggestions import RENAMED
from autothrottle_client.throttlectl import ADDRESS_VARIABLE, CONTEXT_VARIABLE, TOKEN_VARIABLE, make_parser
from autothrottle_lab.servers.jars import REPOSITORY_VARIABLE
from autothrottle_lab.simulate.command import configure, own_flags
from autothrottle_lab.simulate.command import make_parser as make_simulate_parser
from autothrottle_lab.simulate.scenario_file import read_scenario
from tests.benchmarks import pictures
from tests.benchmarks.control.contest import RESULTS
from tests.benchmarks.result_files import read_rows
from tests.pages import ALL_TEXT, DOCS, PAGES, blocks, code, commands
from tests.paths import ROOT
from tests.unit.deploy import foreign_commands

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
KEYS = {"AUTOTHROTTLE_API_KEY": "k1", "AUTOTHROTTLE_APP_KEY": "k2"}

FLAG_SOURCES = (
    "services/autothrottle_lab/demo/command.py",
    "services/autothrottle_lab/simulate/command.py",
    "services/autothrottle/scorer/command.py",
    "services/autothrottle/replay.py",
    "services/autothrottle/scorer/compaction.py",
    "services/autothrottle/__main__.py",
    "tests/chaos/__main__.py",
    "tests/fuzz/__main__.py",
    "tests/benchmarks/control/contest.py",
    "tests/benchmarks/links/contest.py",
    "tests/benchmarks/placement_bench.py",
    "tests/benchmarks/scorer_bench.py",
    "tests/quality/planner_scripts.py",
    "tests/system/version_matrix.py",
    "clients/autothrottle_client/throttlectl.py",
    "tests/conftest.py",
)
"""Modules whose command lines the pages use, beside the options of the services."""
DEPLOYMENT_PAGES = [f"docs/{name}.md" for name in ("deployment", "two-hosts", "kubernetes", "containers", "upgrade")]
BANNED = r"\b(nobody|somebody|whoever|everybody|anybody|is told|it is said|there is none|is no (?!longer)[a-z]+)"


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows that begin with code."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


# --- Pages and links ------------------------------------------------------------------------------------------------


def test_readme_has_at_most_200_lines() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_and_image_resolves(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert linked.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(linked.read_text("utf-8")), f"{page} links to {target}"


def anchors(text: str) -> set[str]:
    """The anchors of all headings, as Markdown viewers derive them."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("index", ["README.md", "docs/README.md"])
def test_the_index_links_every_page(index: str) -> None:
    linked = {((ROOT / index).parent / path).resolve() for path in re.findall(r"\]\(([\w./-]+\.md)", PAGES[index])}
    assert linked >= {path for path in DOCS if path.name != "README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_language_follows_the_style(page: str) -> None:
    assert [found[0] for found in re.finditer(BANNED, PAGES[page], re.IGNORECASE)] == []


@pytest.mark.parametrize("name", ["architecture.svg", "throttle.svg", "policies.svg", "simulate.svg"])
def test_pictures_are_well_formed_and_shown_in_a_page(name: str) -> None:
    root = ElementTree.parse(ROOT / "docs" / "images" / name).getroot()
    assert root.tag.endswith("svg") and root.get("aria-label")
    assert f"images/{name})" in ALL_TEXT


@pytest.mark.parametrize("name", [*pictures.SCREENSHOTS, *pictures.PAGE_SCREENSHOTS])
def test_screenshots_are_images_shown_in_a_page(name: str) -> None:
    assert (ROOT / "docs" / "images" / name).read_bytes().startswith(b"\x89PNG")
    assert f"images/{name})" in ALL_TEXT


def test_screenshots_are_skipped_with_a_message_without_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    pictures.take_screenshots(tmp_path)
    assert capsys.readouterr().out.startswith("skipped report.png, ")
    assert list(tmp_path.iterdir()) == []


def test_pictures_without_a_simulation_are_current() -> None:
    """`make pictures` draws all of them; the simulation of throttle.svg takes 15 s and does not run here."""
    recorded = read_rows(RESULTS)
    images = ROOT / "docs" / "images"
    assert (images / "architecture.svg").read_text("utf-8") == pictures.architecture()
    assert (images / "policies.svg").read_text("utf-8") == pictures.policies(recorded)


# --- Options, variables, make targets, paths ------------------------------------------------------------------------


def test_configuration_page_matches_the_declared_options() -> None:
    page = PAGES["docs/configuration.md"]
    assert page == configuration_page(page), "run make docs"


def test_a_stale_row_or_a_row_of_a_removed_option_is_corrected() -> None:
    page = PAGES["docs/configuration.md"]
    stale = page.replace("| `180` |", "| `60` |") + "| `--removed` |  | text | An option of the past. |\n"
    assert stale.count("| `60` |") == 2
    assert configuration_page(stale) == page


def test_every_flag_in_the_pages_exists() -> None:
    flags = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", ALL_TEXT)) - {"name"}
    sources = [(ROOT / path).read_text("utf-8") for path in FLAG_SOURCES]
    known = {flag for source in sources for flag in re.findall(r'"--([a-z][a-z-]+)"', source)}
    kinds = (*COMMAND_OPTIONS.values(), FetcherOptions)
    placement = {flag for kind in kinds for flag in by_any_name(declared_options(kind))}
    assert flags <= OPTIONS.keys() | placement | RENAMED.keys() | known.union(*foreign_commands.FOREIGN_FLAGS.values())
    assert flags >= OPTIONS.keys()


def test_every_variable_in_the_pages_exists() -> None:
    variables = set(re.findall(r"AUTOTHROTTLE_[A-Z_]+(?<!_)", ALL_TEXT)) - {"AUTOTHROTTLE_NAME"}
    known = {o.variable for o in OPTIONS.values()} | {REPOSITORY_VARIABLE}
    known |= {ADDRESS_VARIABLE, TOKEN_VARIABLE, CONTEXT_VARIABLE, CONTEXTS_VARIABLE}
    assert variables <= known
    assert variables >= KEYS.keys()


def test_every_make_target_in_the_pages_exists() -> None:
    named = set(re.findall(r"(?:`|^ *)make ([a-z][a-z-]*)", ALL_TEXT, re.MULTILINE))
    assert {"demo", "install", "check", "test", "bench", "proto", "pictures"} <= named
    assert named <= make_targets()


def test_every_path_in_the_pages_exists() -> None:
    paths = set(re.findall(r"`((?:services|clients|proto|tests|deploy|docs)/[\w./-]+)`", ALL_TEXT))
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_named_throttlectl_commands_exist() -> None:
    named = set(re.findall(r"throttlectl ([a-z]+(?:-[a-z]+)*)", ALL_TEXT))
    assert named <= throttlectl_commands().keys()


# --- Claims ---------------------------------------------------------------------------------------------------------

PROTECTING = re.compile(r"tls-|-ca$|token|user-file|sasl|digest|-acl$|client-config|certificate-roles|ap[ip]-key")
"""The options that encrypt a connection, or log in on it."""

_ABSENCE = r"\b(?:without|has no|with no|no)\s+(?:a\s+)?(?:TLS|encryption|authentication|login)\b|\bunencrypted\b"
SUBJECTS = {"ZooKeeper": "--zk-", "Kafka": "--kafka-client-config", "Prometheus": "--prometheus-"}
"""Other system -> the beginning of the options that protect the connection to it."""


def bare_claims(text: str) -> list[str]:
    """The paragraphs that say that autothrottle's connection to a system has no TLS or login, without its options."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d+\.) )", text)]
    return [
        paragraph
        for paragraph in paragraphs
        if re.search(_ABSENCE, paragraph) and "autothrottle" in paragraph
        for system, options in SUBJECTS.items()
        if re.search(rf"\bto {system}\b", paragraph) and options not in paragraph
    ]


def test_a_claim_without_the_options_that_end_it_is_noticed() -> None:
    """SECURITY.md said that ZooKeeper is used without TLS and a login, long after both had options."""
    claim = "autothrottle talks to ZooKeeper without TLS and\n  without a login."
    assert len(bare_claims(f"- {claim}\n- Another sentence.")) == 1
    assert bare_claims(f"By default, {claim} `--zk-tls-ca` turns it on.") == []
    assert bare_claims("The original talks to ZooKeeper, and has no login.") == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_a_connection_without_protection_is_named_with_its_options(page: str) -> None:
    assert bare_claims(PAGES[page]) == []


def test_the_security_policy_names_each_option_that_protects_a_connection() -> None:
    table = [line for line in PAGES["SECURITY.md"].splitlines() if line.startswith("| ")]
    named = set(re.findall(r"`--([a-z-]+)`", "\n".join(table)))
    protecting = {name for name in OPTIONS if PROTECTING.search(name)}
    assert {"zk-tls-ca", "zk-sasl-file", "kafka-client-config", "prometheus-token-file"} <= protecting
    assert protecting <= named <= OPTIONS.keys()


def test_what_is_called_not_supported_has_no_option() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in DOCS)
    claims = re.findall(r"([A-Z]\w+)\s+(?:is|are)\s+not\s+supported", pages)
    assert claims
    declared = " ".join(f"{option.name} {option.meaning} {option.range}" for option in OPTIONS.values()).lower()
    assert [claim for claim in claims if claim.lower() in declared] == []


# --- Commands -------------------------------------------------------------------------------------------------------


def check_autothrottle(words: list[str], directory: Path) -> None:
    """Parse the options of a service, of `simulate`, `score` or `replay`."""
    command, *flags = (word for word in words[1:] if word != "&")
    if ">" in flags:
        flags = flags[: flags.index(">")]
    if command == "score":
        assert make_score_parser().parse_args(flags).out
    elif command == "replay":
        arguments = make_replay_parser().parse_args(flags)
        changed_settings(arguments.set)
    elif command == "compact":
        assert make_compact_parser().parse_args(flags).decisions
    elif command == "simulate" and flags[0].startswith("--from-"):
        assert len(flags) == 2 and f'"{flags[0]}"' in (ROOT / FLAG_SOURCES[1]).read_text("utf-8")
    elif command == "simulate":
        scenario, *flags = flags
        own, options = own_flags(flags)
        assert own.plot
        interval = configure(read_scenario(ROOT / scenario), options, {}).interval.total_seconds()
        assert interval == 30
    else:
        assert main([command, "--help"]) == 0
        if command == "state":
            assert (action := flags.pop(0)) in ("export", "import", "secure")
            assert action == "secure" or flags.pop(0).endswith(".json")
        (directory / "autothrottle.toml").write_text(code("toml")[0])
        assert parse(flags, KEYS | {"AUTOTHROTTLE_CONFIG": "autothrottle.toml"}).listen


def check_topicmappr(words: list[str], directory: Path) -> None:
    command, *flags = words[1 : words.index(">") if ">" in words else None]
    (directory / "deploy").symlink_to(ROOT / "deploy")
    kind = COMMAND_OPTIONS[command]
    parsed, warnings, arguments = parse_command(kind, flags, {}, PREFIX, most_words=9)
    assert bool(arguments) == (command in ("export", "decommission", "relieve", "uncordon", "apply", "pools"))
    assert isinstance(parsed, kind) and not warnings


def check_metricsfetcher(words: list[str], directory: Path) -> None:
    options, warnings, _ = parse_command(FetcherOptions, words[1:], {}, FETCHER_PREFIX)
    assert options and not warnings


def check_throttlectl(words: list[str], directory: Path) -> None:
    assert make_parser().parse_args(words[1:]).command == words[1]


def check_completion(words: list[str], directory: Path) -> None:
    assert words[1] in ("<(.venv/bin/throttlectl", "<(.venv/bin/autothrottle")
    assert words[2:] == ["completion", "bash)"]


MAKE_MODULES = {
    "demo": "services/autothrottle_lab/demo/command.py",
    "chaos": "tests/chaos/__main__.py",
    "fuzz": "tests/fuzz/__main__.py",
    "bench-control": "tests/benchmarks/control/contest.py",
    "bench-links": "tests/benchmarks/links/contest.py",
    "bench-placement": "tests/benchmarks/placement_bench.py",
    "bench-score": "tests/benchmarks/scorer_bench.py",
    "matrix": "tests/system/version_matrix.py",
}
"""Target -> the module that parses its ARGS; those of the others are pytest's."""


def check_make(words: list[str], directory: Path) -> None:
    """Look up the target, its variables, and the flags or test names in ARGS."""
    target, *settings = words[1:]
    assert target in make_targets(), target
    for setting in settings:
        name, _, value = setting.partition("=")
        assert re.search(rf"^{name} \?=|\$\({name}\)", MAKEFILE, re.MULTILINE), setting
        if name == "ARGS":
            check_make_arguments(target, shlex.split(value))


def check_make_arguments(target: str, words: list[str]) -> None:
    if target in MAKE_MODULES:
        source = (ROOT / MAKE_MODULES[target]).read_text("utf-8")
        flags = [word for word in words if word.startswith("--")]
        assert words and [flag for flag in flags if f'"{flag}"' not in source] == []
        return
    folder = ROOT / "tests" / ("benchmarks" if target == "bench" else "")
    names = {
        name
        for path in folder.rglob("test_*.py")
        for name in (path.stem, *re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    }
    if words[0] == "--part":
        assert target == "test-all" and re.fullmatch(r"\d/\d", words[1])
        return
    wanted = words[words.index("-k") + 1]
    assert any(wanted in name for name in names), f"make {target}: no test name contains {wanted}"
    assert [word for word in words if word not in ("-k", wanted, "-s")] == []


def check_curl(words: list[str], directory: Path) -> None:
    """Match verb, path, query and body with the gateway's routes."""
    verb = words[words.index("-X") + 1] if "-X" in words else "GET"
    (url,) = (word for word in words if word.startswith("http://localhost:8080"))
    parts = urlsplit(url)
    body = words[words.index("-d") + 1] if "-d" in words else ""
    if parts.path.startswith("/v1"):
        binding, in_path = route(verb, parts.path)
        rest.request(binding, in_path, dict(parse_qsl(parts.query)), body.encode())
        return
    if parts.path == EVENTS_PATH:
        assert verb == "GET"
        return
    assert verb in legacy.allowed(parts.path)
    patterns = [(v, re.sub(r"\{id\}", r"\\d+", path.partition("?")[0])) for v, path, _ in legacy.ROUTES]
    assert any(v == verb and re.fullmatch(pattern, parts.path) for v, pattern in patterns)
    given = dict(parse_qsl(parts.query))
    assert given.keys() <= {"rate", "autoremove"}
    if "rate" in given:
        legacy.rate_megabytes(given["rate"])


def route(verb: str, path: str) -> tuple[rest.Binding, Mapping[str, str]]:
    for binding in (binding for service in SERVICES for binding in rest.bindings(service)):
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", binding.path)
        if binding.verb == verb and (found := re.fullmatch(pattern, path)):
            return binding, found.groupdict()
    raise AssertionError(f"no route answers {verb} {path}")


def check_grpcurl(words: list[str], directory: Path) -> None:
    """Parse the body as the request of the method; test_grpcurl_examples.py calls the services."""
    if words[-1] == "list":
        return
    service, _, method = words[-1].rpartition("/")
    body = words[words.index("-d") + 1] if "-d" in words else "{}"
    file = admin_pb2 if service.endswith("AdminService") else planner_pb2
    assert method in file.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name
    request: Message = json_format.Parse(body, getattr(file, f"{method}Request")())
    # In proto JSON's own spelling: camelCase, int64 as a string.
    assert json_format.MessageToDict(request) == json.loads(body)


def check_export(words: list[str], directory: Path) -> None:
    """test_every_variable_in_the_pages_exists knows the names."""
    assert words[1:] and all("=" in word for word in words[1:])


def check_python(words: list[str], directory: Path) -> None:
    """A virtual environment, or a module of this repository."""
    assert words[1] == "-m"
    assert words[2] == "venv" or importlib.util.find_spec(words[2])


def check_pip(words: list[str], directory: Path) -> None:
    """It installs the packages with their hashes, or only the checkout."""
    if "--require-hashes" in words:
        assert (ROOT / words[words.index("-r") + 1]).is_file()
    else:
        assert words[1:] == ["install", "--no-index", "--no-deps", "--no-build-isolation", "."]


def check_spark_submit(words: list[str], directory: Path) -> None:
    (script,) = (index for index, word in enumerate(words) if word.endswith(".py"))
    assert (ROOT / words[script]).is_file()
    assert make_score_parser().parse_args(words[script + 1 :]).out
    foreign_commands.check_foreign(words[:script], directory)


def check_script(words: list[str], directory: Path) -> None:
    assert (ROOT / words[1]).is_file()


CHECKS: Mapping[str, Callable[[list[str], Path], None]] = {
    ".venv/bin/autothrottle": check_autothrottle,
    ".venv/bin/throttlectl": check_throttlectl,
    "/opt/autothrottle/bin/throttlectl": check_throttlectl,
    ".venv/bin/topicmappr": check_topicmappr,
    ".venv/bin/metricsfetcher": check_metricsfetcher,
    ".venv/bin/python": check_python,
    **foreign_commands.CHECKS,
    "source": check_completion,
    "make": check_make,
    "curl": check_curl,
    "grpcurl": check_grpcurl,
    "export": check_export,
    "bash": check_script,
    "python3": check_python,
    "/opt/autothrottle/bin/pip": check_pip,
    "spark-submit": check_spark_submit,
}
"""Program -> how its command line is checked; a command of any other program fails the test."""


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_command_is_accepted(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words[0] in CHECKS, f"no check for {words[0]}: add one to CHECKS"
    CHECKS[words[0]](words, tmp_path)


def spans(program: str) -> list[list[str]]:
    """The words of all inline code that begins with a program."""
    without_blocks = re.sub(r"^( *)```.*?^\1```$", "", ALL_TEXT, flags=re.DOTALL | re.MULTILINE)
    return [shlex.split(found) for found in sorted(set(re.findall(rf"`({program} [^`\n]+)`", without_blocks)))]


@pytest.mark.parametrize("words", spans("make"), ids=" ".join)
def test_inline_make_command_is_accepted(words: list[str], tmp_path: Path) -> None:
    check_make(words, tmp_path)


@pytest.mark.parametrize("words", spans("throttlectl"), ids=" ".join)
def test_inline_throttlectl_command_is_accepted(words: list[str], tmp_path: Path) -> None:
    """A command without arguments is a name."""
    if len(words) == 2:
        assert words[1] in throttlectl_commands()
    else:
        check_throttlectl(words, tmp_path)


@pytest.mark.parametrize("words", spans("autothrottle"), ids=" ".join)
def test_inline_autothrottle_command_exists(words: list[str]) -> None:
    assert words[1] in {*COMMANDS, "SERVICE", "--version"}
    parsers = {"simulate": make_simulate_parser, "score": make_score_parser}
    options = {f"--{name}" for name in (*OPTIONS, "help", *(["undo"] if words[1] == "state" else []))}
    if words[1] in parsers:
        options = {option for action in parsers[words[1]]()._actions for option in action.option_strings}
    assert {word for word in words[2:] if word[:2] == "--"} <= options


@pytest.mark.parametrize("page", DEPLOYMENT_PAGES)
def test_inline_commands_of_the_deployment_pages_are_among_the_checked_programs(page: str) -> None:
    without_blocks = re.sub(r"^( *)```.*?^\1```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    programs = {Path(found).name for found in re.findall(r"`([a-z/.][\w/.-]+) [^`\n]+`", without_blocks)}
    assert programs <= {"autothrottle", "throttlectl", "make"}


def test_every_block_has_a_language_that_is_checked() -> None:
    assert {block.language for block in blocks()} <= {
        "sh",
        "toml",
        "python",
        "yaml",
        "nginx",
        "",
    }  # tests/system applies that of nginx
    commands_without_check = [
        line for text in code("") for line in text.splitlines() if line.split(" ")[0] in CHECKS or line[:2] == "$ "
    ]
    assert commands_without_check == []


def test_enough_commands_are_found() -> None:
    assert len(commands(".venv/bin/autothrottle")) >= 11
    assert len(commands(".venv/bin/throttlectl")) >= 15
    assert len(commands("make")) >= 10
    assert len(commands("curl")) >= 4 and len(commands("grpcurl")) >= 5


# --- Reference pages ------------------------------------------------------------------------------------------------


def throttlectl_commands() -> Mapping[str, argparse.ArgumentParser]:
    (subparsers,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    found: Mapping[str, argparse.ArgumentParser] = subparsers.choices
    return found


def test_throttlectl_page_has_every_command_and_option() -> None:
    page = PAGES["docs/throttlectl.md"]
    for name, parser in throttlectl_commands().items():
        assert re.search(rf"`{name}\b|throttlectl {name}\b", page), name
        for action in parser._actions:
            for flag in action.option_strings:
                assert flag in ("-h", "--help") or flag in page or flag == "--planner-addr", f"{name} {flag}"


def test_http_page_has_every_route() -> None:
    table = {name.strip("`") for name, _ in rows(PAGES["docs/http-api.md"])}
    json_routes = {f"{one.verb} {one.path}" for service in SERVICES for one in rest.bindings(service)}
    text_routes = {f"{verb} {path}" for verb, path, _ in legacy.ROUTES}
    live = LiveView(AdminReading(Silent()))
    gateway = application(Silent(), 1, Access(), (), live=live, recoveries=dict)
    routes = [route for route in gateway.routes if isinstance(route, Route)]
    page_routes = {
        f"{verb} {route.path}" for route in routes for verb in route.methods or () if route.path.startswith("/page/")
    }
    assert table == json_routes | text_routes | {route for route in page_routes if not route.startswith("HEAD ")}


class Silent:
    """An admin service that nobody calls."""

    def call(self, method: str, request: Message, timeout: timedelta, metadata: Metadata) -> Message:
        raise AssertionError(method)


def test_python_example_uses_existing_names() -> None:
    (example,) = code("python", "docs/http-api.md")
    compile(example, "docs/http-api.md", "exec")
    calls = set(re.findall(r"admin\.(\w+)\(", example))
    assert calls == {"set_override", "watch_cycles"} <= set(dir(AdminClient))
    fields = set(re.findall(r"cycle\.(\w+)", example))
    assert fields and fields <= set(Cycle.__dataclass_fields__)


def test_the_example_of_a_paced_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer's second poll ends the endless loop."""
    sent: list[tuple[object, ...]] = []

    class Client:
        def __init__(self, *topics: str, bootstrap_servers: str) -> None:
            self._polls = iter([{"orders-0": [SimpleNamespace(value=b"v", key=b"k", **SIZES)]}])

        def poll(self, timeout_ms: int) -> object:
            if (found := next(self._polls, None)) is None:
                raise KeyboardInterrupt
            return found

        def send(self, *arguments: object) -> None:
            sent.append(arguments)

    monkeypatch.setattr("kafka.KafkaConsumer", Client)
    monkeypatch.setattr("kafka.KafkaProducer", Client)
    (example,) = code("python", "docs/rate-limiters.md")
    with pytest.raises(KeyboardInterrupt):
        exec(
            compile(example.replace("10.0.0.1:8090,10.0.0.2:8090", "127.0.0.1:1"), "docs/rate-limiters.md", "exec"), {}
        )
    assert sent == [("orders", b"v", b"k")]


SIZES = {"serialized_key_size": 1, "serialized_value_size": 1, "serialized_header_size": -1}


def test_the_page_of_rate_limiters_names_existing_keys_code_and_tests() -> None:
    page, kip = PAGES["docs/rate-limiters.md"].split("## KIP-731\n")
    limiters = [find_rate_limiter(name) for name in [*BUILT_IN, "ControlPlaneRateLimiter"]]
    keys = {key.name for kind in limiters for key in kind.config()}
    assert keys == set(re.findall(r"`(\w+(?:\.\w+)+)` \|", page))
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests" / "unit").rglob("test_*.py"))
    table = re.findall(r"^\| .+ \| `(\w+)` \| `(\w+)` \|$", kip, re.MULTILINE)
    assert len(table) == 14
    for name, test in table:
        assert any(hasattr(module, name) for module in (rate_limiters, pacing, kafka_pacing, control_plane)), name
        assert f"def {test}(" in tests, test


# --- Other examples -------------------------------------------------------------------------------------------------


def test_the_example_of_contexts_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = code("toml", "docs/throttlectl.md")
    (tmp_path / "contexts.toml").write_text(example)
    monkeypatch.setenv(CONTEXTS_VARIABLE, str(tmp_path / "contexts.toml"))
    assert read_contexts().values.keys() == {"prod", "test"}


def test_hosted_workflow_and_hooks_call_the_commands_of_the_project() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert re.search(r"^ +- run: bash \.ci/run$", workflow, re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert "repo: local" in hooks and not re.search(r"repo: (?!local)", hooks)
    named = set(re.findall(r"\.venv/bin/(\S+)", hooks))
    recipe = MAKEFILE.split("\ncheck:")[1].split("\n\n")[0]
    assert named and {name for name in named if f"$(BIN)/{name}" not in recipe} == set()
