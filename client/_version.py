"""The one place that holds the distribution's version."""

__version__ = "0.1.0"
