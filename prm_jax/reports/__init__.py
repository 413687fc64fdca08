"""Pages and pictures of runs, searches and the demo."""
