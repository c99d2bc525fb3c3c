"""Published experiments, one a file: its settings as data, its run, its figure."""
