"""What each notebook needs besides the engines: rows gathered, tables, figures and sentences, a file or folder a notebook."""
