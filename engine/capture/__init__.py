"""Capture: `engine.compile` records a training step and replays it. Read `compiled` first (when a step is recorded and
replayed), then recorder, intercepts and backward (what is recorded), program and code (what is replayed), guards.
"""
