"""Comments that switch rules off: ``# jax-pmap: ignore[JP103]`` on a line, ``ignore-file`` for all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jax_pmap.checking.findings import Finding

_COMMENT = re.compile(r"#\s*jax-pmap:\s*ignore(-file)?(?:\[([^\]]*)\])?", re.IGNORECASE)


def unsuppressed(findings: Iterable[Finding], lines: Sequence[str]) -> list[Finding]:
    """The findings that no comment switches off: on one of their own lines, or for the whole file.

    Without codes in brackets a comment is about every code.
    """
    by_line: dict[int, tuple[str, ...]] = {}
    everywhere: list[tuple[str, ...]] = []
    for number, line in enumerate(lines, 1):
        if "jax-pmap:" not in line:
            continue
        for match in _COMMENT.finditer(line):
            codes = tuple(code.strip().upper() for code in (match[2] or "").split(",") if code.strip())
            if match[1]:
                everywhere.append(codes)
            else:
                by_line[number] = codes
    if not by_line and not everywhere:
        return list(findings)
    return [finding for finding in findings if not _is_off(finding, by_line, everywhere)]


def _is_off(finding: Finding, by_line: dict[int, tuple[str, ...]], everywhere: list[tuple[str, ...]]) -> bool:
    last = max(finding.span.end_line, finding.span.line)
    own = [by_line[line] for line in (finding.span.line, last) if line in by_line]
    return any(not codes or finding.code in codes for codes in (*own, *everywhere))
