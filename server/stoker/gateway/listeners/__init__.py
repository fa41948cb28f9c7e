"""Where requests come in: the listening sockets, the fast path for plain scoring requests, the app for others."""
