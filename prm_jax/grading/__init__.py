"""Is an answer right? Exact rules, computer algebra, and a second opinion."""
