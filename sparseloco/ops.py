"""The one seam through which the rest of the project calls the codec; which backend answers is decided here."""

from sparseloco.outer import apply_probe, outer_step
from sparseloco.reference import compress
from sparseloco.wire import parse, parse_submission

__all__ = ["apply_probe", "backend", "compress", "outer_step", "parse", "parse_submission"]


def backend() -> str:
    """Name of the backend in use, for a node's first log line."""
    return "reference"
