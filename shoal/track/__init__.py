"""Trackers: where else a run's numbers are sent while it goes on."""
