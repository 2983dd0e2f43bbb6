"""What one compile is: the request, the module, and the key that both and their surroundings make."""

from __future__ import annotations

import json

from client.compiler_path import NAME
from client.environment import LOGICAL_CORES, TARGET, keyed_environment, resolve_logical_cores, resolve_target
from client.launcher import identity, module
from client.launcher.digest import sha256
from client.launcher.passing import NotShared

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from client.launcher.command import Request
    from client.launcher.tier import Tier

SCHEMA = 1
KIND = "cc"


class Plan:
    """A compile that can be shared: all that the client needs to find or to make its NEFF."""

    __slots__ = ("document", "environ", "key", "module", "program", "request")

    def __init__(self, request: Request, program: str, environ: Mapping[str, str], tier: Tier | None) -> None:
        """Read the module and resolve the rest; raises `NotShared` if that cannot be done for certain."""
        self.request = request
        self.program = program
        self.environ = environ
        self.module = module.read(request.source)
        self.document = self._describe(tier)
        self.key = key_of(self.document)

    def _describe(self, tier: Tier | None) -> dict[str, Any]:
        request, environ = self.request, self.environ
        try:
            target = request.target or resolve_target(environ)
            cores = int(request.logical_cores or resolve_logical_cores(environ, target))
            env = keyed_environment(environ)
            version = identity.version_of(self.program, environ, tier)
        except (ValueError, OSError) as error:
            raise NotShared(str(error)) from error
        except Exception as error:
            # by its name: importing the exceptions costs a hit more than all that it reads
            if type(error).__name__ != "ConfigurationError":
                raise
            raise NotShared(str(error)) from error
        resolved = {TARGET: target, **dict.fromkeys(LOGICAL_CORES, str(cores))}
        # where a variable and the command line disagree, both are in the key
        env.update((name, environ[name]) for name in resolved if environ.get(name, resolved[name]) != resolved[name])
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "ir": {
                "dialect": self.module.dialect,
                "format": self.module.encoding,
                "version": module.RULES,
                "sha256": self.module.sha256,
            },
            "compiler": {"name": NAME, "version": version},
            "target": target,
            "logical_cores": cores,
            "flags": list(request.flags),
            "kernels": [kernel.sha256 for kernel in self.module.kernels],
            "extra": {"env": env} if env else {},
        }


def key_of(document: Mapping[str, Any]) -> str:
    """Return the key of a document of kind ``cc``: what `client.key.key_of` returns, without its imports.

    For plain strings, small whole numbers and names in ASCII the standard library writes the canonical JSON of
    RFC 8785. Raises `NotShared` for a document that holds anything else.
    """
    if not all(name.isascii() for name in document["extra"].get("env", ())):
        raise NotShared("a variable whose name is not ASCII")
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise NotShared("a word that is not UTF-8") from error
    return sha256(text)
