"""Labels of steps by people: what they judge, how it is kept, what is next."""
