"""The gateway: HTTP in front of the exchanges. Runs in frontend processes, which never import a framework.

What refuses a request raises a `StokerError`, whose class says why; the endpoint that received the request answers.
"""
