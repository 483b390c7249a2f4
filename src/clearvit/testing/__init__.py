"""Backbones with known faults, for testing detectors and cures."""

from clearvit.testing.planted import Kind, Planted, planted

__all__ = ["Kind", "Planted", "planted"]
