"""The objects of a plan, a module for each concern: pure functions from a plan to plain dictionaries."""
