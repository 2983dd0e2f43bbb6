"""Settings that look like ours and are read by nobody, or by another cache: what was meant, for jobs and ``doctor``.

A variable that nobody reads is the commonest reason for a cache that is not used, and nothing else would ever say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.environment import is_made_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX = "NEURON_CACHE_"
_LIKENESS = 0.7

KNOWN: frozenset[str] = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "URL", "PROJECT", "MODE", "TOKEN", "TOKEN_FILE", "TOKEN_COMMAND", "LABEL",
        "NODE_DIR", "NODE_MAX_BYTES", "NODE_MAX_AGE", "NODE_SHARED",
        "SIGNING_KEY", "TRUSTED_KEYS", "SIGNATURES",
        "ON_MISS", "ON_ERROR", "WAIT_LIMIT", "COMPILE_LIMIT", "COMPILE_SLOTS", "COMPILE_MEMORY", "SUMMARY", "RECORD",
        "CA_FILE", "CLIENT_CERT", "CLIENT_KEY", "COMPILER", "LAUNCHER_DEPTH", "REDIRECT_HOSTS",
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
COMPILE_CACHE_URL = "NEURON_COMPILE_CACHE_URL"
OTHERS: Mapping[str, str] = {
    COMPILE_CACHE_URL: "libneuronxla (torch-xla, JAX), for AWS's own persistent cache",
    "NEURON_LIBTORCH_REMOTE_CACHE": "libtorch-neuronx-lite, for its own cache",
    "VLLM_NEURON_REMOTE_CACHE": "vLLM-Neuron, for its own cache",
    "TORCH_NEURONX_NEFF_CACHE_DIR": "torch-neuronx, for its own cache",
}
"""Caches of other programs, and who reads their settings. None of them is read by neff-cache."""


def unread(environ: Mapping[str, str]) -> list[str]:
    """Return the names with our prefix that are set and that nothing reads, sorted; not what a platform made up."""
    ours = (name for name in environ if name.startswith(PREFIX) and name not in KNOWN)
    return sorted(name for name in ours if not is_made_up(name, environ))


def meant_by(name: str) -> str | None:
    """Return the setting that whoever set ``name`` may have meant, None if it is near to none."""
    if name in MEANT:
        return MEANT[name]
    import difflib  # noqa: PLC0415 - only where something is misspelt

    names = sorted(known.removeprefix(PREFIX) for known in KNOWN)
    found = difflib.get_close_matches(name.removeprefix(PREFIX), names, 1, _LIKENESS)
    return f"{PREFIX}{found[0]}" if found else None


def answers(environ: Mapping[str, str], url: str | None) -> Iterator[tuple[str, str]]:
    """Yield name and sentence for each setting that was set in vain, for a job whose shared cache is ``url``."""
    for name in unread(environ):
        meant = meant_by(name)
        yield name, f"{name} is set, and nothing reads it" + (f": did you mean {meant}?" if meant else "")
    if url is None and environ.get(COMPILE_CACHE_URL, "").strip():
        sentence = f"{COMPILE_CACHE_URL} is read by {OTHERS[COMPILE_CACHE_URL]}, and not by neff-cache"
        yield COMPILE_CACHE_URL, f"{sentence}: to share programs through neff-cache set NEURON_CACHE_URL"
