"""Published forms of files, a module each; records/formats.py names them."""
