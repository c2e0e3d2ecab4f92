"""The paper: its published numbers as data, and one recipe a table or figure."""
