"""What stands above the library: command line, training, experiments, demo, denoising, benchmarks, data sets."""
