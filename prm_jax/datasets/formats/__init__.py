"""The published forms of files, one module each; records/formats.py names them."""
