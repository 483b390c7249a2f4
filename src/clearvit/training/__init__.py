"""Training habits that the rooms share: one loop, one kind of checkpoint, one order of the data."""
