"""What tells constants from others that no source is equal to: callables, configurations, objects."""

from __future__ import annotations

from collections.abc import Collection

from jax_pmap.emit.render import contents_source
from jax_pmap.session import Session
from jax_pmap.worker import protocol


def identities(session: Session, expressions: Collection[str]) -> dict[str, protocol.Identity]:
    """By expression, what the emitted code tells a constant from another one by.

    Those are left out that have no contents to be told by.
    """
    if not expressions:
        return {}
    asked = protocol.Identities(contents_source(), "contents", tuple(sorted(expressions)))
    answer = session.ask(asked, "reading constants")
    return {name: found for name, found in answer.items() if found is not None}
