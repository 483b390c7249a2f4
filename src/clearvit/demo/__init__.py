"""What the demo works on: photos that are on every machine."""
