"""The command line: flags of verbs' fields, and what is printed."""
