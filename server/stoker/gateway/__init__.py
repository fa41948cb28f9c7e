"""The gateway: HTTP in front of the exchanges. Runs in frontend processes, which never import a framework.

Code that refuses a request raises a `StokerError`, whose class says why; the endpoint of the request answers. The
process is a package of its own (decision 19).
"""
