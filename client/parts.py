"""What a cache object consists of."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.artifact import Artifact
    from client.cluster import Cluster
    from client.memory import MemoryTier
    from client.node.guard import GuardedTier
    from client.settings import Settings
    from client.signing.signer import Signer
    from client.single_flight import SingleFlight
    from client.statistics import Tally
    from client.warnings import Notices
    from client.wire import Holder


@dataclass(slots=True)
class Parts:
    """The parts of one cache object in one process; a forked child builds its own.

    ``node`` is None without a node tier, ``cluster`` without a shared cache. ``revocations`` is taken once and never
    given back, by whoever reads the list of what was withdrawn. ``signer`` is None if nothing is to be signed.
    ``upload_grace`` is for how many seconds an upload is waited for before it is left to the background.
    """

    settings: Settings
    notices: Notices
    tally: Tally
    memory: MemoryTier
    flights: SingleFlight[Artifact]
    node: GuardedTier | None
    cluster: Cluster | None
    holder: Holder
    signer: Signer | None = None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    uploads: Uploads = field(default_factory=Uploads)
    upload_grace: float = 0.25
    revocations: threading.Lock = field(default_factory=threading.Lock)
