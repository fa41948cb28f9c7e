"""The engine of Ray clusters."""
