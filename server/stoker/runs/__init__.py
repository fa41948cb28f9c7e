"""Training runs on disk: what was asked, what has become of it, its files, and what is read of many of them."""
