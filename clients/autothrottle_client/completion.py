"""Static completion scripts for bash, zsh and fish, generated from an argparse parser; completion runs no program.

The type to know is `Grammar`: the input of the script generators.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")

_Reply = Callable[[Iterable[str]], str]
"""Returns the shell command that offers the given words."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One option."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    """Allowed values; empty: any value, or the flag takes none."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Command:
    """The arguments and flags of one command."""

    meaning: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    """Choices of its positional arguments."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """All words and flag names that complete this command."""
        return (*self.words, *(name for flag in self.flags for name in flag.names))


@dataclass(frozen=True, slots=True)
class Grammar:
    """All commands and flags of a program."""

    program: str
    flags: tuple[Flag, ...]
    """Flags before the command."""
    commands: Mapping[str, Command]

    @classmethod
    def of(cls, parser: argparse.ArgumentParser) -> Grammar:
        """Return the grammar of a parser with subcommands."""
        (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        meanings = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
        commands = {name: _command(sub, meanings.get(name, "")) for name, sub in subparsers.choices.items()}
        return cls(parser.prog, _flags(parser), commands)

    @property
    def all_flags(self) -> tuple[Flag, ...]:
        """The flags of all commands, without duplicates."""
        found = {flag.names: flag for command in self.commands.values() for flag in (*self.flags, *command.flags)}
        return tuple(found.values())


def completion_script(grammar: Grammar, shell: str) -> str:
    """Return the completion script of a program for one of SHELLS."""
    if shell == "fish":
        return _fish(grammar)
    return _bash(grammar) if shell == "bash" else _zsh(grammar)


def _command(parser: argparse.ArgumentParser, meaning: str) -> Command:
    positional = (action for action in parser._actions if not action.option_strings)
    words = tuple(str(choice) for action in positional for choice in action.choices or ())
    return Command(meaning, _flags(parser), words)


def _flags(parser: argparse.ArgumentParser) -> tuple[Flag, ...]:
    return tuple(
        Flag(tuple(a.option_strings), a.nargs != 0, tuple(map(str, a.choices or ())), a.help or "")
        for a in parser._actions
        if a.option_strings
    )


def _bash(grammar: Grammar) -> str:
    def reply(words: Iterable[str]) -> str:
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(words))} -- "$current"))'

    function = "_" + grammar.program
    lines = [
        f"# Completion of {grammar.program} for bash; load it with: source <({grammar.program} completion bash)",
        f"{function}() {{",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD - 1]}" command="" word',
        "    COMPREPLY=()",
        *_value_cases(grammar, '"$previous"', reply),
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do',
        *_command_cases(grammar, reply),
        "}",
        f"complete -F {function} {grammar.program}",
    ]
    return "\n".join(lines) + "\n"


def _zsh(grammar: Grammar) -> str:
    def reply(words: Iterable[str]) -> str:
        return f"compadd -- {shlex.join(words)}"

    function = "_" + grammar.program
    lines = [
        f"#compdef {grammar.program}",
        f"# Completion of {grammar.program} for zsh; load it with: source <({grammar.program} completion zsh)",
        f"{function}() {{",
        '    local previous="${words[CURRENT - 1]}" command="" word',
        *_value_cases(grammar, '"$previous"', reply),
        '    for word in "${(@)words[2,CURRENT - 1]}"; do',
        *_command_cases(grammar, reply),
        "}",
        f"compdef {function} {grammar.program}",
    ]
    return "\n".join(lines) + "\n"


def _value_cases(grammar: Grammar, previous: str, reply: _Reply) -> list[str]:
    """Complete the value of the previous option; offer nothing if it has no fixed choices."""
    lines = [f"    case {previous} in"]
    for flag in grammar.all_flags:
        if flag.takes_value:
            action = f"{reply(flag.choices)}; return" if flag.choices else "return"
            lines.append(f"        {'|'.join(flag.names)}) {action} ;;")
    return [*lines, "    esac"]


def _command_cases(grammar: Grammar, reply: _Reply) -> list[str]:
    """Find the command among the previous words, then complete its arguments."""
    commands = "|".join(grammar.commands)
    top = (*grammar.commands, *(name for flag in grammar.flags for name in flag.names))
    return [
        f'        case "$word" in {commands}) command="$word"; break ;; esac',
        "    done",
        '    case "$command" in',
        *(f"        {name}) {reply(command.candidates)} ;;" for name, command in grammar.commands.items()),
        f"        *) {reply(top)} ;;",
        "    esac",
    ]


def _fish(grammar: Grammar) -> str:
    program, lines = grammar.program, []
    lines.append(f"# Completion of {program} for fish; load it with: {program} completion fish | source")
    lines.append(f"complete -c {program} -f")
    for name, command in grammar.commands.items():
        lines.append(f"complete -c {program} -n __fish_use_subcommand -a {name} -d {_quoted(command.meaning)}")
    lines += [_fish_flag(program, "__fish_use_subcommand", flag) for flag in grammar.flags]
    for name, command in grammar.commands.items():
        seen = f"__fish_seen_subcommand_from {name}"
        lines += [_fish_flag(program, seen, flag) for flag in command.flags]
        if command.words:
            lines.append(f"complete -c {program} -n {_quoted(seen)} -a {_quoted(' '.join(command.words))}")
    return "\n".join(lines) + "\n"


def _fish_flag(program: str, condition: str, flag: Flag) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    value = " -x" if flag.takes_value else ""
    choices = f" -a {_quoted(' '.join(flag.choices))}" if flag.choices else ""
    return f"complete -c {program} -n {_quoted(condition)} {names}{value}{choices} -d {_quoted(flag.meaning)}"


def _quoted(text: str) -> str:
    """Return the text in single quotes, escaped for fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
