"""How results are shown: what every notebook stands on, how notebooks are run, and the page. It needs config alone."""
