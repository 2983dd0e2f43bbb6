"""What a command works on: the settings of this process, and the tiers and caches that they name."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from client.cli.output import say
from client.errors import ConfigurationError, Denied
from client.listing import KeyPattern, folder_entries, node_entries
from client.names import check_project
from client.node.eviction import Evictor
from client.node.tier import NodeTier
from client.server_calls import ServerCalls
from client.settings import Settings
from client.sources import NodeSource, Source, is_server, open_source
from client.transports import open_transport
from client.warnings import Notices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.signing.check import SignatureCheck
    from client.signing.signer import Signer
    from client.transports.base import Transport
    from client.wire import Entry

NO_URL = "no shared cache is named: set NEURON_CACHE_URL, or give --url"


@dataclass(frozen=True)
class Here:
    """This process's settings, and what they name. Everything raises `ConfigurationError` for what is not there."""

    environ: Mapping[str, str]
    settings: Settings
    notices: Notices = field(default_factory=Notices)

    @classmethod
    def open(cls, url: str | None = None, project: str | None = None) -> Here:
        """Return the settings in force, with options of the command line before those of the environment."""
        given = {"NEURON_CACHE_URL": url, "NEURON_CACHE_PROJECT": project and check_project(project)}
        environ = {**os.environ, **{name: value for name, value in given.items() if value}}
        settings = Settings.from_environment({**environ, "NEURON_CACHE_ON_ERROR": "continue"})
        for sentence in settings.problems:
            say(sentence)
        return cls(environ, settings)

    @property
    def url(self) -> str:
        """The shared cache's address."""
        if self.settings.url is None:
            raise ConfigurationError(NO_URL)
        return self.settings.url

    @property
    def shared_folder(self) -> Path | None:
        """The shared cache's folder if it is one."""
        if self.settings.url is None or is_server(self.settings.url):
            return None
        with closing(open_transport(self.settings.url, self.settings.project, self.environ)) as transport:
            address = urlsplit(transport.address)
        return Path(unquote(address.path)) if address.scheme == "file" else None

    def tier(self, project: str | None = None) -> NodeTier:
        """Return this machine's node tier."""
        if self.settings.node_dir is None:
            raise ConfigurationError("there is no node tier here: set NEURON_CACHE_NODE_DIR to a directory")
        return NodeTier(
            self.settings.node_dir,
            project or self.settings.project,
            shared=self.settings.node_shared,
            check=self.check,
        )

    @cached_property
    def check(self) -> SignatureCheck | None:
        """What judges entries by the settings; None if nothing does."""
        if self.settings.signature_mode == "off":
            return None
        from client.signing.job import open_check  # noqa: PLC0415 - most commands need none of it

        return open_check(self.settings, self.notices)

    def signer(self, key: Path | None = None) -> Signer | None:
        """Return what signs by ``key`` or NEURON_CACHE_SIGNING_KEY, if there is one."""
        file = key or self.settings.signing_key
        if file is None:
            return None
        from client.signing.keys import PrivateKey  # noqa: PLC0415 - as above
        from client.signing.signer import Signer  # noqa: PLC0415

        return Signer(PrivateKey.load(file))

    def evictor(self, tier: NodeTier) -> Evictor:
        """Return what keeps a node tier within its bounds."""
        return Evictor(tier.tree, self.settings.node_max_bytes, max_age=self.settings.node_max_age)

    @contextmanager
    def transport(self, project: str | None = None) -> Iterator[Transport]:
        """Open the shared cache for single entries."""
        with closing(open_transport(self.url, project or self.settings.project, self.environ)) as transport:
            yield transport

    @contextmanager
    def source(self, project: str | None = None, *, node: bool = False) -> Iterator[Source]:
        """Open the shared cache, or the node tier, for many entries."""
        project = project or self.settings.project
        found = NodeSource(self.tier(project)) if node else open_source(self.url, project, self.environ)
        with closing(found) as source:
            yield source

    @contextmanager
    def calls(self, project: str | None = None) -> Iterator[ServerCalls | None]:
        """Open the cache server; None if the shared cache is none, or there is no shared cache."""
        if self.settings.url is None or not is_server(self.settings.url):
            yield None
            return
        with closing(ServerCalls(self.settings.url, project or self.settings.project, self.environ)) as calls:
            yield calls


@dataclass(frozen=True)
class Located:
    """An entry, and where it was found."""

    where: str
    entry: Entry
    is_shared: bool


def locate(here: Here, text: str) -> list[Located]:
    """Return where the entry of a key stands: in the node tier, in the shared cache, or both.

    The beginning of a key is looked for here and in shared folders; a server and a bucket are asked for whole keys.
    Raises `ConfigurationError` if several entries begin so, `client.errors.TransportError` if the shared cache cannot
    be asked.
    """
    pattern = KeyPattern.parse(text)
    found: list[Located] = []
    if here.settings.node_dir is not None:
        tier = here.tier()
        where = f"node tier {tier.tree.root}"
        found += [Located(where, entry, is_shared=False) for entry in node_entries(tier, pattern.kinds, pattern.digits)]
    if here.settings.url is not None:
        found += _in_shared(here, pattern, found)
    names = {(located.entry.kind, located.entry.key) for located in found}
    if len(names) > 1:
        listed = ", ".join(sorted(f"{kind}/{key}" for kind, key in names)[:5])
        raise ConfigurationError(f"{text!r} means {len(names)} entries: {listed}; give more digits, or the kind")
    return found


def _in_shared(here: Here, pattern: KeyPattern, known: list[Located]) -> Iterator[Located]:
    folder = here.shared_folder
    whole = {located.entry.key for located in known} or ({pattern.digits} if pattern.is_whole else set())
    with here.transport() as transport:
        if folder is not None and not pattern.is_whole:
            entries = folder_entries(folder, here.settings.project, pattern.kinds, pattern.digits)
            yield from (Located(transport.address, entry, is_shared=True) for entry in entries)
            return
        denied: Denied | None = None
        for key in sorted(whole):
            for kind in pattern.kinds:
                try:
                    entry = transport.entry(kind, key)
                except Denied as error:  # a token may cover some kinds and not others
                    denied = error
                    continue
                if entry is not None:
                    denied = None
                    yield Located(transport.address, entry, is_shared=True)
                    break
        if denied is not None and not known:
            raise denied
