"""Backbones with known faults, for testing detectors and cures."""

from clearvit.testing.planted import Kind, Planted, planted
from clearvit.testing.wired import wired

__all__ = ["Kind", "Planted", "planted", "wired"]
