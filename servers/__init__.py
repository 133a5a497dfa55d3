"""Starts, watches and stops OpenAI-compatible engines; holds the embedded one."""
