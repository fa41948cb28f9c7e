"""Packages, variables and images of scripts."""
