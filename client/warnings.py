"""What the client says to a job: one warning for each cause, and little else.

Everything goes to the logger ``neff_cache``. Python's own warnings are not used, because a job may turn those into
errors, and the cache must never end a job.
"""

from __future__ import annotations

import logging
import threading

from client.cleaning import clean

LOGGER = logging.getLogger("neff_cache")


def _cleaned(record: logging.LogRecord) -> bool:
    """Let every record through, what it quotes of others cleaned: a handler of the job's writes it to a terminal."""
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 - a record that cannot be made is told of by the handler
        return True
    if not message.isprintable():
        record.msg, record.args = clean(message), None
    return True


LOGGER.addFilter(_cleaned)


class Notices:
    """Says each thing once, however many graphs, threads or requests meet it. Safe to use from several threads."""

    def __init__(self, logger: logging.Logger = LOGGER) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def warn(self, cause: str, message: str) -> None:
        """Log ``message`` as a warning unless ``cause`` was warned of before; then it is left to the debug level."""
        level = logging.WARNING if self._first(cause) else logging.DEBUG
        self._logger.log(level, "neff-cache: %s", message)

    def waiting(self, message: str) -> None:
        """Say that this process waits: the first time as a warning, which is seen by default, later as information."""
        level = logging.WARNING if self._first("waiting") else logging.INFO
        self._logger.log(level, "neff-cache: %s", message)

    def _first(self, cause: str) -> bool:
        with self._lock:
            if cause in self._said:
                return False
            self._said.add(cause)
            return True
