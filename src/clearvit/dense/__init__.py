"""Tasks on the patch tokens: object discovery."""
