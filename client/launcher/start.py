"""The program ``neuronx-cc`` that callers find first on ``PATH``.

::

    understood? -> key -> this node's disk -> the client proper (shared cache, lease, the real compiler)
         |
         no: the real compiler takes this process's place

Started for every module, so nothing is imported before it is needed: a hit gets by with `re` and `json`.
Whatever goes wrong here ends with the real compiler, never with an error of ours.
"""

from __future__ import annotations

import os
import sys

from client.compiler_path import NAME, SETTING, find_compiler
from client.launcher import command, passing
from client.launcher.passing import NotShared

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


def main() -> NoReturn:
    """Run as ``neuronx-cc``; ends the process, or becomes the compiler."""
    arguments, environ = sys.argv[1:], dict(os.environ)
    if passing.depth(environ) >= passing.MOST_DEPTH:
        passing.refuse(
            f"the launcher has started itself {passing.MOST_DEPTH} times over: what it takes for the compiler"
            f" ({find_compiler(environ)}) starts it again; set {SETTING} to the real compiler"
        )
    program = find_compiler(environ)
    if program is None:
        passing.refuse(_nothing_found(environ), passing.NOT_FOUND)
    try:
        _share(arguments, program, environ)
    except NotShared as reason:
        why = str(reason)
    except KeyboardInterrupt:
        from client.launcher.interrupts import die_of  # noqa: PLC0415 - a hit never needs it

        die_of(2)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not cost the caller its compile
        why = f"{type(error).__name__}: {error}"
    if command.COMPILE in arguments:
        from client.launcher.counting import count_passed  # noqa: PLC0415 - a hit never needs it

        count_passed(environ, why)
        arguments = command.without_wrapper_words(arguments)
    passing.become(program, arguments, environ)


def _share(arguments: list[str], program: str, environ: Mapping[str, str]) -> None:
    """Answer the request and end the process; raises `NotShared`."""
    if passing.depth(environ):
        raise NotShared("started by a compiler")
    if environ.get("NEURON_CACHE_MODE", "").strip().lower() == "off":
        raise NotShared("NEURON_CACHE_MODE=off")
    request = command.read(arguments, environ.get("NEURON_CC_FLAGS", "").split())

    from client.launcher import delivery  # noqa: PLC0415 - what is not shared needs none of these
    from client.launcher.plan import Plan  # noqa: PLC0415
    from client.launcher.tier import Tier  # noqa: PLC0415

    delivery.check(request.output)
    try:
        tier = Tier(environ)
    except ValueError:
        tier = None
    plan = Plan(request, program, environ, tier)
    if tier is not None and tier.plain:
        try:
            hit = tier.hit(plan.key)
        except Exception:  # noqa: BLE001 - absent, damaged, refused: the client proper knows what to do
            hit = None
        if hit is not None:
            entry, neff = hit
            delivery.write(request.output, neff)
            delivery.write_log(request.logfile, entry, "this node's disk")
            os._exit(0)

    from client.launcher.missing import Miss  # noqa: PLC0415 - all the rest of the client

    Miss(plan).run()


def _nothing_found(environ: Mapping[str, str]) -> str:
    wanted = environ.get(SETTING, "").strip()
    looked = f"{SETTING}={wanted!r} is no program, or a launcher" if wanted else "there is no other neuronx-cc on PATH"
    return f"no Neuron compiler behind this {NAME}: {looked}; install the Neuron SDK, or set {SETTING} to its compiler"
