"""What everything else is made of: Gaussians, linear algebra, noise; how programs are compiled and files written."""
