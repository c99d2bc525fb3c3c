"""Images and videos without their noise."""
