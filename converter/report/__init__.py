"""Text, Markdown and JSON of finished values."""
