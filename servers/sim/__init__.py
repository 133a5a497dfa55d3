"""The embedded engine: an exact small language model behind an OpenAI-compatible API."""
