"""Faults planted into parallel code, each of which the proof has to catch."""
