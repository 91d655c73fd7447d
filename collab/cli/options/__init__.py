"""Options that several commands take, by topic."""
