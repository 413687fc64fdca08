"""What `make demo` runs: small models of each kind, trained and compared."""
