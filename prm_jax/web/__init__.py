"""What browsers get: the files of pages, without a build and without a network."""
