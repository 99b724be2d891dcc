"""Many questions at once: ``questions`` (a row a question, from a file or a table), ``answers`` (each on its devices)."""
