"""The microscope as a small server, for one's own images and for folders; needs FastAPI."""
