"""Run again what README.md and docs/ show as output, and put the new output in its place.

    python docs/refresh.py

The blocks are those after a comment `<!-- output of: COMMAND -->`; tests/test_readme.py holds them to it.
The picture is made by docs/make_picture.py.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"(?:<!-- output of: ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def refreshed(text: str, folder: Path) -> str:
    """`text` with its output blocks made anew; files and commands before them are followed in `folder`."""

    def replace(match: re.Match[str]) -> str:
        command, language, body = match.groups()
        if command:
            words = shlex.split(command)
            if words[0] == "cat":
                output = (folder / words[1]).read_text(encoding="utf-8")
            else:
                done = run(words, folder)
                output = done.stdout if language == "python" or words[1] == "check" else done.stderr
            return f"<!-- output of: {command} -->\n```{language}\n{output.strip()}\n```"
        name = re.match(r"# (\w+\.py)\n", body)
        if language == "python" and name:
            (folder / name[1]).write_text(body, encoding="utf-8")
        if language == "console":
            for line in body.splitlines():
                if line.startswith("$ jax-pmap") and " -o " in line:
                    done = run(shlex.split(line[2:], comments=True), folder)
                    if done.returncode:
                        sys.exit(f"{line}\n{done.stderr}")
        return match[0]

    return FENCE.sub(replace, text)


def with_rules(text: str) -> str:
    """`text` with the table of `check`'s rules between its two comments made anew."""
    from jax_pmap import diagnostics

    codes = [code for code in diagnostics.codes() if "JP100" < code < "JP150"]
    rows = [f"| {link(code)} | {diagnostics.find(code).title} |" for code in codes]
    table = "\n".join(["| code | mistake |", "|---|---|", *rows])
    return re.sub(
        r"<!-- rules -->\n.*?<!-- end of rules -->",
        lambda _: f"<!-- rules -->\n{table}\n<!-- end of rules -->",
        text,
        flags=re.DOTALL,
    )


def anchor(heading: str) -> str:
    """The fragment by which mkdocs and GitHub know a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def link(code: str) -> str:
    """A code with the way to it in the reference."""
    from jax_pmap import diagnostics

    return f"[{code}](diagnostics.md#{anchor(f'{code}: {diagnostics.find(code).title}')})"


def reference() -> str:
    """The page of all diagnostics."""
    from jax_pmap import diagnostics

    made = (
        "Every code, as `jax-pmap explain` prints it. Made by `docs/refresh.py` from the files of the codes."
    )
    parts = [f"# Diagnostics\n\n{made}\n"]
    for code in diagnostics.codes():
        entry = diagnostics.find(code)
        parts.append(
            f"## {code}: {entry.title}\n\n{entry.meaning}\n\n{entry.why}\n\n**Cure.** {entry.cure}\n"
        )
        parts.append(_shown(entry.example, entry.example_language))
        if entry.fixed:
            parts.append("Instead:\n\n" + _shown(entry.fixed, entry.fixed_language))
    return "\n".join(parts)


def removed() -> str:
    """The page of what jax removed and deprecated."""
    from jax_pmap.checking import removals

    parts = [
        "# What jax removed",
        "What parallel code used, from jax 0.6 to 0.12, and what to write instead: the table that "
        f"{link('JP107')} and {link('JP124')} of [`jax-pmap check`](check.md) read. Made by "
        "`docs/refresh.py`; the rows are held against the packages of jax themselves.",
        "A number below 0.6 says that jax 0.6 was already without it; a parameter without a number in "
        "`deprecated` may never have been one of that function.",
    ]
    for title, rows in (
        ("Names", removals.NAMES),
        ("Parameters", (*removals.PARAMETERS, *removals.ATTRIBUTES)),
        ("Options of `jax.config`", removals.OPTIONS),
        ("Ways of writing", (removals.WITH_MESH,)),
    ):
        lines = [f"| `{row.name}` | {row.since} | {row.gone} | {row.cure} |" for row in rows]
        parts += [
            f"## {title}",
            "\n".join(["| | deprecated | gone | instead |", "|---|---|---|---|", *lines]),
        ]
    return "\n\n".join(parts) + "\n"


def _shown(code: str, language: str) -> str:
    """A block that is not run: it is wrong on purpose, or stands for another project."""
    if language == "console":
        return f"```text\n{code.strip()}\n```\n"
    return f"<!-- jax-pmap: skip -->\n```python\n{code.strip()}\n```\n"


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a `jax-pmap` command line."""
    return subprocess.run(
        [sys.executable, "-m", "jax_pmap", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def main() -> None:
    """Refresh every page that shows output."""
    (REPOSITORY / "docs" / "diagnostics.md").write_text(reference(), encoding="utf-8")
    (REPOSITORY / "docs" / "removed.md").write_text(removed(), encoding="utf-8")
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if "<!-- output of:" not in text:
            continue
        text = with_rules(text)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for example in (REPOSITORY / "examples").glob("*.py"):
                shutil.copy(example, folder)
            page.write_text(refreshed(text, folder), encoding="utf-8")
        print(page.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
