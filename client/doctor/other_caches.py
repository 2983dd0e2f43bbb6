"""Caches of other programs: which of their settings are set, who reads each, and what becomes of it beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from client.compiler_path import first_on_path, is_launcher
from client.doctor.base import Finding, note, ok
from client.environment import WORDS
from client.look_alikes import COMPILE_CACHE_URL
from client.shown import shown_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.doctor.base import Surroundings

_CACHE_DIR, _NO_CACHE = "--cache_dir", "--no_cache"


class _Setting(NamedTuple):
    name: str
    reader: str
    layout: str
    default: str | None
    takes_buckets: bool = False


_SETTINGS = (
    _Setting(
        COMPILE_CACHE_URL,
        "libneuronxla (torch-xla, NxD, the JAX plug-in)",
        "npc",
        "/var/tmp/neuron-compile-cache",  # noqa: S108 - that cache's own default
        takes_buckets=True,
    ),
    _Setting("VLLM_NEURON_REMOTE_CACHE", "vLLM-Neuron", "libtorch-lite-remote", None),
    _Setting("NEURON_LIBTORCH_REMOTE_CACHE", "libtorch-neuronx-lite", "libtorch-lite-remote", None),
    _Setting("TORCH_NEURONX_NEFF_CACHE_DIR", "TorchNeuron", "torchneuron", "/tmp/neff_cache"),  # noqa: S108 - as above
)


def check(surroundings: Surroundings) -> Iterator[Finding]:
    """Name each setting, who reads it, and what it means for the shared cache. None of them is read by neff-cache."""
    environ = surroundings.environ
    words = _words(environ)
    for setting in _SETTINGS:
        value = environ.get(setting.name, "").strip()
        overruled = setting.name == COMPILE_CACHE_URL and _CACHE_DIR in words
        yield _overruled(setting, value) if overruled else _about(setting, value)
    if _CACHE_DIR in words:
        folder = words[_CACHE_DIR]
        yield note(
            f"{_CACHE_DIR}={shown_address(folder)} in {WORDS} is read by libneuronxla as its cache's root, "
            f"before {COMPILE_CACHE_URL}; the compiler never sees it",
            _mirrored(folder, "npc") if "://" not in folder else _imported(folder, "npc"),
        )
    if _NO_CACHE in words:
        yield note(
            f"{_NO_CACHE} in {WORDS} is read by libneuronxla, and by the launcher: "
            "everything is compiled, and nothing of it shared",
            "remove it, unless this is what you want",
        )
    yield _launcher(surroundings)


def _words(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the words of the flags that name other caches, with their values; the right-most counts."""
    found: dict[str, str] = {}
    words = iter(environ.get(WORDS, "").split())
    for word in words:
        name, equals, value = word.partition("=")
        if name == _CACHE_DIR:
            found[name] = value if equals else next(words, "")
        elif name == _NO_CACHE:
            found[name] = ""
    return found


def _about(setting: _Setting, value: str) -> Finding:
    name, reader = setting.name, setting.reader
    if not value:
        if setting.default is None:
            return ok(f"{name} is not set: {reader} shares nothing by itself")
        text = f"{name} is not set: {reader} keeps its cache in {setting.default}"
        return note(text, _mirrored(setting.default, setting.layout)) if Path(setting.default).is_dir() else ok(text)
    text = f"{name}={shown_address(value)} is read by {reader}, for its own cache; neff-cache does not read it"
    if "://" not in value:
        return note(text, _mirrored(value, setting.layout))
    if setting.takes_buckets:
        return note(text, _imported(value, setting.layout))
    return note(text, f"{reader} takes a directory there; an address like this is taken for one")


def _overruled(setting: _Setting, value: str) -> Finding:
    shown = f"={shown_address(value)}" if value else ""
    return ok(f"{setting.name}{shown} is not used: {_CACHE_DIR} in {WORDS} comes first for {setting.reader}")


def _mirrored(folder: str, layout: str) -> str:
    return f"`neff-cache sync {folder} --layout {layout}` fills it from this cache, with --push this cache from it"


def _imported(address: str, layout: str) -> str:
    return f"`neff-cache import {shown_address(address)} --layout {layout}` brings its entries into this cache"


def _launcher(surroundings: Surroundings) -> Finding:
    program = first_on_path(surroundings.environ)
    if program is None:
        return ok("there is no neuronx-cc on PATH: what these caches lack cannot be compiled here")
    if is_launcher(program):
        return ok(f"what these caches lack is asked of neff-cache: the neuronx-cc on PATH is its launcher ({program})")
    return note(
        f"what these caches lack is compiled by {program}, unseen by neff-cache",
        "start the job by `neff-cache exec -- …`, or put the launcher first on PATH",
    )
