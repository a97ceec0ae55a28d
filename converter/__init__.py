"""ax2mt: converts AXLearn checkpoints into MaxText checkpoints."""

__version__ = "0.1.0"
