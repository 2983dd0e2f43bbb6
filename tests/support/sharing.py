"""A shared cache as scenarios use one, whatever stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.jobs import job_environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stored import StoredFiles

LEASE_SECONDS = 3


@dataclass
class Shared:
    """A shared cache: its address, and what lies in its store. Leases live `LEASE_SECONDS`."""

    url: str
    files: StoredFiles
    config: Path | None = None

    def environment(self, node: Path, **more: str) -> dict[str, str]:
        """Return the environment of a process on the node tier ``node``."""
        return job_environment(node, self.url, self.config, **more)
