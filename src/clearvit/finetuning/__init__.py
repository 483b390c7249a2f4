"""A backbone trained on labelled images, for retrieval."""
