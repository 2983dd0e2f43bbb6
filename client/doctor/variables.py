"""Settings, and who reads them: a variable that nobody reads is the commonest reason for a cache that is not used."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from client.doctor.base import Finding, note, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.doctor.base import Surroundings

_PREFIX = "NEURON_CACHE_"
_LIKENESS = 0.7

KNOWN: frozenset[str] = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        "URL", "PROJECT", "MODE", "TOKEN", "TOKEN_FILE", "LABEL", "NODE_DIR", "NODE_MAX_BYTES", "NODE_SHARED",
        "ON_MISS", "ON_ERROR", "WAIT_LIMIT", "COMPILE_LIMIT", "COMPILE_SLOTS", "COMPILE_MEMORY", "SUMMARY", "RECORD",
        "CA_FILE", "CLIENT_CERT", "COMPILER", "LAUNCHER_DEPTH",
    )
)  # fmt: skip
"""Every variable with our prefix that anything here reads; a test compares it with code and documents."""

MEANT: Mapping[str, str] = {
    "NEURON_CACHE_DIR": "NEURON_CACHE_NODE_DIR",
    "NEURON_CACHE_PATH": "NEURON_CACHE_NODE_DIR",
    "NEURON_CACHE_SERVER": "NEURON_CACHE_URL",
    "NEURON_CACHE_REMOTE": "NEURON_CACHE_URL",
    "NEURON_CACHE_ENDPOINT": "NEURON_CACHE_URL",
}
OTHERS: Mapping[str, str] = {
    "NEURON_COMPILE_CACHE_URL": "libneuronxla (torch-xla, JAX), for AWS's own persistent cache",
    "NEURON_LIBTORCH_REMOTE_CACHE": "libtorch-neuronx-lite, for its own cache",
    "VLLM_NEURON_REMOTE_CACHE": "vLLM-Neuron, for its own cache",
    "TORCH_NEURONX_NEFF_CACHE_DIR": "torch-neuronx, for its own cache",
}
"""Caches of other programs, and who reads their settings. None of them is read by neff-cache."""

_SECRET = re.compile("TOKEN(?!_FILE)")
_LOCAL = re.compile(r"(/|\./|~|file://)")


def check_settings(surroundings: Surroundings) -> Iterator[Finding]:
    """Say what is in effect, and why; and what was set in vain."""
    environ, settings = surroundings.environ, surroundings.settings
    for sentence in settings.problems:
        yield problem(sentence, "jobs use what is named instead")
    yield ok(
        f"in effect: node tier {settings.node_dir or 'none'} ({_origin(environ, 'NODE_DIR')}), "
        f"shared cache {_shown_url(settings.url)} ({_origin(environ, 'URL')}), project {settings.project}, "
        f"mode {settings.mode}"
    )
    for name in sorted(environ):
        if not name.startswith(_PREFIX):
            continue
        if name in KNOWN:
            value = "(set)" if _SECRET.search(name) else _shown_url(environ[name])
            yield ok(f"{name}={value}, read by neff-cache")
        else:
            meant = MEANT.get(name) or _near(name)
            yield problem(
                f"{name} is set, and nothing reads it",
                f"did you mean {meant}?" if meant else "remove it; `docs/settings.md` lists all settings",
            )


def check_look_alikes(surroundings: Surroundings) -> Iterator[Finding]:
    """Name the settings of other caches that are in force here, and what they do and do not do."""
    environ = surroundings.environ
    found = False
    for name, reader in OTHERS.items():
        if environ.get(name):
            found = True
            yield note(f"{name} is read by {reader}; neff-cache does not read it", _hint(name, surroundings))
    for word in environ.get("NEURON_CC_FLAGS", "").split():
        flag, _, value = word.partition("=")
        if flag in {"--cache_dir", "--no_cache"}:
            found = True
            said = "names its folder there, before NEURON_COMPILE_CACHE_URL" if value else "concerns that cache alone"
            yield note(f"{flag} in NEURON_CC_FLAGS is read by libneuronxla, for AWS's own persistent cache: it {said}")
    url = surroundings.settings.url
    if url is not None and _LOCAL.match(url) and "neuron-compile-cache" in url:
        found = True
        yield problem(
            f"NEURON_CACHE_URL={url} looks like the folder of AWS's own persistent cache, whose layout is another one",
            "set NEURON_COMPILE_CACHE_URL for that, and NEURON_CACHE_URL to a folder of its own",
        )
    if not found:
        yield ok("no other cache's settings are in force")


def _hint(name: str, surroundings: Surroundings) -> str:
    if name == "NEURON_COMPILE_CACHE_URL" and surroundings.settings.url is None:
        return "for this cache set NEURON_CACHE_URL"
    return ""


def _near(name: str) -> str | None:
    """Return the setting that a misspelt name is nearest to, None if it is near to none."""
    names = sorted(known.removeprefix(_PREFIX) for known in KNOWN)
    found = difflib.get_close_matches(name.removeprefix(_PREFIX), names, 1, _LIKENESS)
    return f"{_PREFIX}{found[0]}" if found else None


def _origin(environ: Mapping[str, str], name: str) -> str:
    return f"from NEURON_CACHE_{name}" if environ.get(f"NEURON_CACHE_{name}", "").strip() else "default"


def _shown_url(value: str | None) -> str:
    """Return a value as it may be shown: without what stands before an @, which may be a password."""
    if value is None:
        return "none"
    return re.sub(r"(?<=://)[^/@]*@", "", value)
