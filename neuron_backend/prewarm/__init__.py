"""Prewarm: capture, key, compile and publish what a job will ask for, without running it."""
