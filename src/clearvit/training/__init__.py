"""One training loop, one kind of checkpoint, one order of the data, for every package."""
