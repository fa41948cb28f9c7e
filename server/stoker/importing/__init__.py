"""Imports a model with proof: converts it, compares each way to run it with the original, and measures them."""
