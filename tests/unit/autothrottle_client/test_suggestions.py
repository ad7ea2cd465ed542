"""Suggestions for commands and options that do not exist, over all programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from autothrottle import __main__ as autothrottle
from autothrottle.runtime.command_line import COMMANDS as SERVICE_COMMANDS
from autothrottle.runtime.configuration import OPTIONS
from autothrottle.runtime.configuration_reader import parse, parse_command
from autothrottle.runtime.option_kinds import declared_options
from autothrottle.topicmappr import command_line as topicmappr
from autothrottle.topicmappr import metricsfetcher
from autothrottle.topicmappr.options import COMMAND_OPTIONS, FETCHER_PREFIX, PREFIX, FetcherOptions
from autothrottle_client import suggestions, throttlectl
from autothrottle_client.suggestions import COMMANDS, option_fix, similar_commands, suggestion

EXAMPLES = sorted({example for commands in suggestions._MEANINGS.values() for example, _ in commands})


def throttlectl_options() -> dict[str, set[str]]:
    """Return command -> its options, without dashes."""
    (subparsers,) = (action for action in throttlectl.make_parser()._actions if action.dest == "command")
    assert isinstance(subparsers.choices, dict)
    return {
        name: {option.lstrip("-") for action in parser._actions for option in action.option_strings}
        for name, parser in subparsers.choices.items()
    }


def test_the_lists_have_the_commands_of_each_program() -> None:
    assert set(COMMANDS["autothrottle"]) == {*SERVICE_COMMANDS, "version"}
    assert set(COMMANDS["topicmappr"]) == {*COMMAND_OPTIONS, "version"}
    assert set(COMMANDS["throttlectl"]) == throttlectl_options().keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_suggested_command_is_accepted(example: str) -> None:
    program, *words = shlex.split(example)
    if program == "throttlectl":
        assert throttlectl.make_parser().parse_args(words).command == words[0]
    elif program == "topicmappr":
        assert parse_command(COMMAND_OPTIONS[words[0]], words[1:], {}, PREFIX, most_words=2).options
    elif program == "metricsfetcher":
        assert parse_command(FetcherOptions, words, {}, FETCHER_PREFIX).options
    else:
        assert words[0] in SERVICE_COMMANDS
        if SERVICE_COMMANDS[words[0]].options and words[0] != "state":
            parse(words[1:], {}, used=SERVICE_COMMANDS[words[0]].options)


@pytest.mark.parametrize(("option", "command"), suggestions._COMMAND_OF_OPTION.items())
def test_each_named_command_has_the_option(option: str, command: str) -> None:
    program, name = command.split()
    if program == "throttlectl":
        assert option in throttlectl_options()[name]
    else:
        options = OPTIONS if program == "autothrottle" else declared_options(COMMAND_OPTIONS[name])
        assert option in options


@pytest.mark.parametrize(
    ("program", "word", "commands"),
    [
        ("throttlectl", "decommission", ["topicmappr decommission", "throttlectl plan decommission"]),
        ("throttlectl", "status", ["throttlectl state", "throttlectl top"]),
        ("throttlectl", "Rebalance", ["topicmappr rebalance"]),
        ("throttlectl", "check", ["autothrottle check"]),
        ("topicmappr", "reassign", ["throttlectl reassign", "topicmappr rebuild"]),
        ("topicmappr", "cancel", ["throttlectl cancel"]),
        ("topicmappr", "cordon", ["topicmappr decommission"]),
        ("topicmappr", "gateway", ["autothrottle gateway"]),
        ("autothrottle", "stop", ["throttlectl pause", "throttlectl pause --clear", "throttlectl cancel"]),
        ("autothrottle", "start", ["autothrottle run"]),
        ("autothrottle", "decomission", ["topicmappr decommission"]),
        ("autothrottle", "runn", ["autothrottle run"]),
        ("metricsfetcher", "forecast", ["topicmappr forecast"]),
    ],
)
def test_a_guessed_command_gets_the_commands_that_an_operator_means(
    program: str, word: str, commands: Sequence[str]
) -> None:
    """`throttlectl decommission` was "invalid choice", although topicmappr has the command."""
    examples = [example for example, _ in similar_commands(program, word)]
    for example, command in zip(examples, commands, strict=False):
        assert example.startswith(command)
    assert len(examples) >= len(commands)


def test_a_word_that_means_nothing_gets_no_suggestion() -> None:
    assert suggestion("topicmappr", "frobnicate") == ""
    assert option_fix("frobnicate", OPTIONS) == ""


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("kafka-addr", "did you mean --bootstrap-servers?"),
        ("bootstrap-server", "did you mean --bootstrap-servers?"),
        ("zookeeper", "did you mean --zk-addr?"),
        ("command-config", "did you mean --kafka-client-config?"),
        ("capcity", "did you mean --capacity?"),
        ("topics", "it is an option of `topicmappr rebuild`"),
        ("throttle", "it is an option of `throttlectl reassign`"),
    ],
)
def test_an_option_of_another_tool_or_command_is_named(option: str, fix: str) -> None:
    assert option_fix(option, OPTIONS) == fix


def test_every_program_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    for main, words in (
        (autothrottle.main, ["status"]),
        (topicmappr.main, ["status"]),
        (metricsfetcher.main, ["status"]),
        (throttlectl.main, ["status"]),
    ):
        assert main(words) == 2
        assert "\n  throttlectl state " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["score", "--decisons", "x", "--out", "y"], "unrecognized arguments: --decisons; did you mean --decisions?"),
        (["replay", "--decisions", "x", "--polciy=static"], "unrecognized arguments: --polciy; did you mean --policy?"),
        (["compact", "--older-then", "1"], "unrecognized arguments: --older-then; did you mean --older-than?"),
    ],
)
def test_a_mistyped_option_is_named_before_the_arguments_that_it_hides(
    words: Sequence[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`score --decisons x --out y` said that --decisions is required, and not that --decisons is unknown."""
    with pytest.raises(SystemExit) as ended:
        autothrottle.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {problem}\n")
