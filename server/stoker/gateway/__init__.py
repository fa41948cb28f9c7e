"""The gateway: HTTP in front of the exchanges. Runs in frontend processes, which never import a framework."""
