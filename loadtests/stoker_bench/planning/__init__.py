"""What plans cost."""
