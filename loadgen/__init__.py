"""Drives load at an OpenAI-compatible endpoint and writes down all that it saw."""
