"""Data stores and data sets: folders of the workspace, and names for what lies in them."""
