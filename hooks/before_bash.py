"""Before a Bash command: ask, where jax-pmap would run another program than the project's own code.

The first fence is `jax-pmap --confined`, which refuses such command lines itself. This is the second, for a
command line that was approved by how it begins. It decides by the text alone and only ever asks; what it has
nothing to say about goes the client's own way. Standard library only, any Python 3.8 or newer.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

#: What may stand in front of a command and run it.
WRAPPERS = frozenset(
    {
        "builtin",
        "command",
        "env",
        "exec",
        "nice",
        "nohup",
        "setsid",
        "stdbuf",
        "sudo",
        "time",
        "timeout",
        "xargs",
    }
    | {"pipx", "run", "uv", "uvx"}
    | {"!", "{", "if", "then", "elif", "else", "while", "until", "do", "coproc"}
)
#: What runs the text that it is given as a command line.
SHELLS = frozenset({"eval", "sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "trap"})
#: What sets variables for the commands behind it, or gives their names another meaning.
SETTERS = frozenset({"export", "declare", "typeset", "readonly", "alias", "source", "."})
#: Options that run a program, or write where reading was approved.
ASKED = ("--run", "--python", "--fix", "--accept", "--report")
_ENDS = frozenset(";&|\n()")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_PYTHON = re.compile(r"(?:^|[=\s:,(\[{])py:")
_CALL = re.compile(r"\w\.\w+\{")


def reason_to_ask(command: str, directory: Path) -> str | None:
    """Why a person should look at `command`, typed in `directory`; None where that is not for us to say."""
    if "jax-pmap" not in command and "jax_pmap" not in command:
        return None
    try:
        calls = list(calls_of(command))
    except ValueError:
        return "the command line cannot be read (a quote is open)"
    for folder in folders_of(command) if calls else ():
        if _is_outside(folder, project_root(directory), directory):
            return f"it goes to `{folder}`, outside the project"
    for assigned, words in calls:
        if assigned:
            return "it sets variables for jax-pmap, which may choose another program"
        found = asked_for(words, directory)
        if found is not None:
            return found
    if calls and expands(command):
        return "the shell puts in what is not there to read ($ or `)"
    return None


def calls_of(command: str) -> list[tuple[bool, list[str]]]:
    """Whether variables are set, and the words behind it, for every call of jax-pmap in a command line.

    Variables stay set for the commands that come later. Texts that a shell is given are command lines too.
    """
    found, are_set = [], False
    for words in simple_commands(command):
        program = next((Path(word).name for word in words if not _in_front(word)), "")
        inner = words if program in SHELLS else []
        nested = [call for word in inner if re.search(r"\s", word) for call in calls_of(word)]
        found += [(assigned or are_set, rest) for assigned, rest in [*_call(words), *nested]]
        are_set |= program in SETTERS or (not program and any(map(_ASSIGNMENT.match, words)))
    return found


def folders_of(command: str) -> list[str]:
    """The folders that a command line goes to."""
    return [words[-1] for words in simple_commands(command) if words[:1] in (["cd"], ["pushd"])]


def simple_commands(command: str) -> list[list[str]]:
    """The words of each command in a command line.

    Raises:
        ValueError: a quote is open.
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    simple: list[list[str]] = [[]]
    for word in lexer:
        if word and set(word) <= _ENDS:
            simple.append([])
        else:
            simple[-1].append(word)
    return simple


def _call(words: list[str]) -> list[tuple[bool, list[str]]]:
    assigned = False
    for index, word in enumerate(words):
        if Path(word).name == "jax-pmap":
            return [(assigned, words[index + 1 :])]
        if word == "jax_pmap" and words[index - 1 : index] == ["-m"]:
            return [(assigned, words[index + 1 :])]
        if not _in_front(word) and not Path(word).name.startswith("python"):
            return []
        assigned |= bool(_ASSIGNMENT.match(word))
    return []


def _in_front(word: str) -> bool:
    """Whether a word may stand ahead of the program that is run."""
    other = word.startswith("-") or re.match(r"\d", word) or _ASSIGNMENT.match(word)
    return bool(other) or Path(word).name in WRAPPERS


def asked_for(words: list[str], directory: Path) -> str | None:
    """What in the words behind `jax-pmap` runs another program, or leaves the project."""
    root = project_root(directory)
    for word in words:
        option = word.partition("=")[0]
        if option in ASKED:
            return f"`{option}` runs a program or writes files that this approval is not about"
        if _PYTHON.search(word):
            return f"`{word}` runs Python that was typed (`py:`)"
        if _CALL.search(word):
            return f"`{word}` calls a class of another module"
        path = re.sub(r"^-[\w-]*=?", "", word).partition("::")[0]
        if _is_outside(path, root, directory):
            return f"`{path}` is outside the project `{root}`"
    return None


def _is_outside(path: str, root: Path, directory: Path) -> bool:
    """Whether a word is a path that leads out of the project; one that looks like none is not."""
    if path[:1] not in ("/", "~") and ".." not in path.split("/"):
        return False
    real = os.path.realpath(directory / os.path.expanduser(path))  # noqa: PTH111 (Path's raises for unknown users)
    return real != str(root) and not real.startswith(f"{root}{os.sep}")


def project_root(directory: Path) -> Path:
    """The nearest folder upwards with pyproject.toml or .git, as the tool has it."""
    here = Path(os.path.realpath(directory))
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return here


def expands(command: str) -> bool:
    """Whether the shell replaces anything in a command line: `$` or a backtick outside single quotes."""
    single = double = False
    characters = iter(command)
    for character in characters:
        if character == "\\" and not single:
            next(characters, None)
        elif character == "'" and not double:
            single = not single
        elif character == '"' and not single:
            double = not double
        elif character in "$`" and not single:
            return True
    return False


def main() -> None:
    """Answer for the tool call on standard input."""
    try:
        asked = json.load(sys.stdin)
        command, directory = asked["tool_input"]["command"], Path(asked.get("cwd") or Path.cwd())
    except (ValueError, KeyError, TypeError):
        return
    reason = reason_to_ask(command, directory) if isinstance(command, str) else None
    if reason is not None:
        decision = {
            "hookEventName": "PreToolUse",
            "permissionDecision": "ask",
            "permissionDecisionReason": f"jax-pmap: {reason}",
        }
        print(json.dumps({"hookSpecificOutput": decision}))


if __name__ == "__main__":
    main()
