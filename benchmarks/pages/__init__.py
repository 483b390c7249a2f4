"""One module per page of docs/results: `page()` reads results and gives Markdown."""
