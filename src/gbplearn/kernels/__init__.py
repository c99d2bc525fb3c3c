"""Visits in native code, behind one door (`registry`)."""
