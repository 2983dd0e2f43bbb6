"""Settings, and who reads them: a variable that nobody reads is the commonest reason for a cache that is not used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from client.doctor.base import Finding, ok, problem
from client.look_alikes import KNOWN, PREFIX, meant_by
from client.shown import shown_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.doctor.base import Surroundings

_SECRET = re.compile("TOKEN(?!_FILE)")
_LOCAL = re.compile(r"(/|\./|~|file://)")


def check_settings(surroundings: Surroundings) -> Iterator[Finding]:
    """Say what is in effect, and why; and what was set in vain."""
    environ, settings = surroundings.environ, surroundings.settings
    for sentence in settings.problems:
        yield problem(sentence, "jobs use what is named instead")
    yield ok(
        f"in effect: node tier {settings.node_dir or 'none'} ({_origin(environ, 'NODE_DIR')}), "
        f"shared cache {shown_address(settings.url)} ({_origin(environ, 'URL')}), project {settings.project}, "
        f"mode {settings.mode}"
    )
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        if name in KNOWN:
            value = "(set)" if _SECRET.search(name) else shown_address(environ[name])
            yield ok(f"{name}={value}, read by neff-cache")
        else:
            meant = meant_by(name)
            yield problem(
                f"{name} is set, and nothing reads it",
                f"did you mean {meant}?" if meant else "remove it; `docs/settings.md` lists all settings",
            )


def check_look_alikes(surroundings: Surroundings) -> Iterator[Finding]:
    """Find the commonest mix-up: the folder of another cache as the address of this one."""
    url = surroundings.settings.url
    if url is not None and _LOCAL.match(url) and "neuron-compile-cache" in url:
        yield problem(
            f"NEURON_CACHE_URL={url} looks like the folder of AWS's own persistent cache, whose layout is another one",
            "set NEURON_COMPILE_CACHE_URL for that, and NEURON_CACHE_URL to a folder of its own",
        )
    else:
        yield ok("no setting of this cache names another one")


def _origin(environ: Mapping[str, str], name: str) -> str:
    return f"from NEURON_CACHE_{name}" if environ.get(f"NEURON_CACHE_{name}", "").strip() else "default"
