"""Files of solutions: our own form, the tables of others, and what names them."""
