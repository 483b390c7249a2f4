"""Clean tokens without labels: views of a picture, and their average."""
