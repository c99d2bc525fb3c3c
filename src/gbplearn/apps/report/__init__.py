"""What a run leaves behind: figures, numbers, and a page that shows both."""
