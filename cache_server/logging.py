"""Logs: one line an event on standard error, JSON unless somebody watches."""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING, TextIO

import structlog

from client.cleaning import clean, cleaned_value

if TYPE_CHECKING:
    from cache_server.settings import Settings

# local variables of a failed request hold tokens, and those of a failed connection the database's password
_WITHOUT_LOCALS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


def _cleaned(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Leave nothing in a line that moves a cursor: paths, labels and errors are what callers sent."""
    return {
        # nearly every value is plain, and nearly every request is a line
        name: value if isinstance(value, str) and value.isprintable() else cleaned_value(value)
        for name, value in event.items()
    }


def _clean_traceback(out: TextIO, raised: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, raised)
    out.write(clean(text.getvalue()))


def configure(settings: Settings) -> None:
    """Set up structlog for this process. Only a server's own process calls this, never a library user's."""
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    renderers: list[structlog.typing.Processor] = (
        [_cleaned, structlog.dev.ConsoleRenderer(exception_formatter=_clean_traceback)]
        if as_text
        else [structlog.processors.ExceptionRenderer(_WITHOUT_LOCALS), _cleaned, structlog.processors.JSONRenderer()]
    )
    common: list[structlog.typing.Processor] = [
        # the id of the request that is served, on worker threads too
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # what libraries log through the standard library comes out in the same form
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    # of a collector that is gone each try would be a line: that a batch was given up is enough
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    structlog.configure(
        processors=[*common, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
