"""Runs a plan: stage, stream, rewrite, copy, publish."""

from converter.conversion.destination import resolve_destination
from converter.conversion.run import Request, Result, convert

__all__ = [
    "Request",
    "Result",
    "convert",
    "resolve_destination",
]
