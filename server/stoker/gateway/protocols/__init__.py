"""The endpoints of each protocol, and who may read the metadata that they serve."""
