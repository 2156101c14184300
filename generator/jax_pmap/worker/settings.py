"""Settings of jax that the user's modules make when they are imported."""

import os
import re
from typing import Any

import jax

#: Where and how jax runs, what it keeps, prints and logs: not what a function computes.
UNRELATED = re.compile(
    r"mock_|jax_(?:platform|backend|xla_|cpu_|num_cpu|\w*_visible_devices|default_device$|cross_host|distributed|"
    r"log|debug_(?:log|leaked)|dump|pprint|explain|compil|persistent|enable_compilation_cache|raise_persistent|"
    r"pgle|enable_pgle|traceback|tracer_error|include|hlo_source|source_|captured|send_trace|thread|transfer|"
    r"array_garbage|share_binary|check_proxy|pjrt|serialization|export|exec_time|memory_fitting|optimization|"
    r"sort_devices|use_shardy|use_direct|use_simplified|remove_)"
)


def settings() -> dict[str, Any]:
    """The settings that a function's results may depend on, by name."""
    return {
        name: value
        for name, value in jax.config.values.items()
        if not UNRELATED.match(name) and isinstance(value, (bool, int, float, str, type(None)))
    }


#: As they are before any code of the user's.
FIRST = settings()


def changed() -> dict[str, Any]:
    """The settings that have another value than before the user's code, in alphabetical order."""
    return {name: value for name, value in sorted(settings().items()) if value != FIRST.get(name)}


def too_late() -> dict[str, str]:
    """Variables that would be settings, had the user's code made them before jax was imported here."""
    names = (name for name in os.environ if name.lower() in FIRST)
    now = settings()
    return {name: os.environ[name] for name in names if not _means(os.environ[name], now[name.lower()])}


def _means(text: str, value: Any) -> bool:
    if isinstance(value, bool):
        return (text.lower() in ("y", "yes", "t", "true", "on", "1")) is value
    return text == ("" if value is None else str(value))
