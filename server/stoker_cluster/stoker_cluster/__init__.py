"""Servers in a Kubernetes cluster: a plan, and the objects made from it. Most modules need no cluster."""
