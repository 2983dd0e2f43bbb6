"""Where an entry stands: project, kind, key. The unit of locking, publishing and removal."""

from __future__ import annotations

from typing import NamedTuple

from client.layout import entry_folder
from client.names import Kind, check_digest, check_kind, check_project


class Address(NamedTuple):
    """One key in one namespace. Build it with `parse` from anything that came from outside."""

    project: str
    kind: Kind
    key: str

    @classmethod
    def parse(cls, project: str, kind: str, key: str) -> Address:
        """Return the address if all three names are valid, else raise `client.errors.WireError`."""
        return cls(check_project(project), check_kind(kind), check_digest(key))

    @property
    def path(self) -> str:
        """The entry's folder below the store's root: ``<project>/<kind>/<aa>/<key>``."""
        return entry_folder(self.project, self.kind, self.key)

    def __str__(self) -> str:
        """Return ``project/kind/key``."""
        return f"{self.project}/{self.kind}/{self.key}"
