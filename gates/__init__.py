"""Judges run directories: statistics, verdict, reports. Opens no socket."""
