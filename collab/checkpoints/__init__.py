"""From folder to folder: every command as one function, in a file of its name."""
