"""The version, in one place: packaging, `--version` and the receipts take it from here."""

__version__ = "0.1.0"
