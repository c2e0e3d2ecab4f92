"""The paper: its published numbers as data, and one recipe per table or figure."""
