"""What `check` found, as text, JSON, GitHub annotations and SARIF 2.1.0."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax_pmap.diagnostics as diagnostics
from jax_pmap.checking.findings import Finding
from jax_pmap.checking.run import CheckReport
from jax_pmap.version import VERSION

CHECK_SCHEMA_VERSION = 1
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(report: CheckReport, form: str, *, color: bool = False) -> str:
    """The report in one form.

    Args:
        report: what was found.
        form: ``"text"``, ``"json"``, ``"github"`` or ``"sarif"``.
        color: whether text may hold escape sequences.
    """
    if form == "json":
        return _dumps(as_json(report))
    if form == "sarif":
        return _dumps(as_sarif(report))
    if form == "github":
        return "".join(_annotation(finding) for finding in report.findings)
    return "".join(_text(finding, color) for finding in report.findings)


def summary(report: CheckReport) -> str:
    """One line: how many files, what was found, what was mended."""
    count, can = len(report.findings), sum(finding.fixable for finding in report.findings)
    found = f"{count} finding{'s' if count != 1 else ''}" if count else "nothing found"
    parts = [f"{found} in {report.files} file{'s' if report.files != 1 else ''}"]
    if report.fixed:
        parts.append(f"{report.fixed} mended")
    if report.accepted:
        parts.append(f"{report.accepted} edited {'file' if report.accepted == 1 else 'files'} accepted")
    if can:
        parts.append(f"{can} can be mended with --fix")
    return "; ".join(parts)


# --- text ---------------------------------------------------------------------------------


def _text(finding: Finding, color: bool) -> str:
    def styled(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color else text

    lines = [f"{styled(str(finding.span), '1')}: {styled(finding.code, '1;31')} {_one_line(finding.message)}"]
    lines += [f"    {line}" for detail in finding.details for line in detail.rstrip().splitlines()]
    if finding.hint:
        lines.append(f"    {styled('hint:', '36')} {_one_line(finding.hint)}")
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- JSON ---------------------------------------------------------------------------------


def as_json(report: CheckReport) -> dict[str, Any]:
    """The document that ``schemas/check.schema.json`` describes."""
    return {
        "schema_version": CHECK_SCHEMA_VERSION,
        "status": "found" if report.findings else "clean",
        "files": report.files,
        "fixed": report.fixed,
        "accepted": report.accepted,
        "notes": [{"file": file, "note": note} for file, note in report.notes],
        "findings": [
            {
                "code": finding.code,
                "title": _title(finding.code),
                "message": finding.message,
                "hint": finding.hint,
                "span": dataclasses.asdict(finding.span),
                "fixable": finding.fixable,
                "details": list(finding.details),
                "fingerprint": finding.fingerprint,
            }
            for finding in report.findings
        ],
    }


def _title(code: str) -> str:
    diagnostic = diagnostics.find(code)
    return diagnostic.title if diagnostic else ""


def _dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


# --- GitHub -------------------------------------------------------------------------------


def _annotation(finding: Finding) -> str:
    """A workflow command, as documented for GitHub Actions: values are escaped in two ways."""
    span = finding.span
    properties = {
        "file": span.file,
        "line": span.line,
        "endLine": span.end_line or span.line,
        "title": f"{finding.code} {_title(finding.code)}",
    }
    if (span.end_line or span.line) == span.line:
        properties["col"] = span.column + 1
    written = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    said = _data(f"{finding.message}\n{finding.hint}".strip())
    return f"::error {written}::{said}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# --- SARIF --------------------------------------------------------------------------------


def as_sarif(report: CheckReport) -> dict[str, Any]:
    """A SARIF 2.1.0 log with one run; rules are those that found something."""
    codes = sorted({finding.code for finding in report.findings})
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "jax-pmap",
                        "semanticVersion": VERSION,
                        "rules": [_sarif_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(finding, codes) for finding in report.findings],
            }
        ],
    }


def _sarif_rule(code: str) -> dict[str, Any]:
    diagnostic = diagnostics.find(code)
    assert diagnostic is not None
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in diagnostic.title.replace("`", "").split()),
        "shortDescription": {"text": diagnostic.title},
        "fullDescription": {"text": diagnostic.meaning},
        "help": {"text": f"{diagnostic.why}\n\n{diagnostic.cure}"},
        "defaultConfiguration": {"level": "error"},
    }


def _sarif_result(finding: Finding, codes: list[str]) -> dict[str, Any]:
    span = finding.span
    region: dict[str, int] = {"startLine": max(span.line, 1), "startColumn": span.column + 1}
    if span.end_line:
        region |= {"endLine": span.end_line, "endColumn": span.end_column + 1}
    uri = {"uri": _uri(span.file)}
    if not span.file.startswith("/"):
        uri["uriBaseId"] = "%SRCROOT%"
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": "error",
        "message": {"text": f"{finding.message.rstrip('.')}. {finding.hint}".strip()},
        "locations": [{"physicalLocation": {"artifactLocation": uri, "region": region}}],
        "partialFingerprints": {"jaxPmapFinding/v1": finding.fingerprint},
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path, safe="/._-~")
