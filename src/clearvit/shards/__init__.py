"""Tokens of a whole folder on disk: written once, resumed after a crash, read lazily."""
