"""Clusters of Kubernetes as compute targets."""
