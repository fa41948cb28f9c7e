"""The shared rows of one device process: leased, filled, told, and given back."""
