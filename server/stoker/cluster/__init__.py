"""Servers in a Kubernetes cluster: a plan, and the objects that follow from it. Nothing here needs a cluster."""
