"""Image retrieval: marginals, transport between patches, re-ranking and its measures."""
