"""What factors measure: `h`, and its Jacobian as linear operators."""
