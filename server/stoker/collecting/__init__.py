"""Collected requests and answers: what is kept, in which files, and how many bytes of them."""
