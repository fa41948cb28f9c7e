"""The endpoints of each protocol over HTTP, and access to their metadata."""
