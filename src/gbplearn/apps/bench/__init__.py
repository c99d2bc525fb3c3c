"""`gbplearn bench`: what an iteration costs, beside one step of Adam and beside what memory traffic alone costs."""
