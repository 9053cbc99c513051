"""What people look at: figures, tables, lines of text, and the pieces notebooks are made of."""
