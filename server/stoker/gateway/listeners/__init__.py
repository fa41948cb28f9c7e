"""Where requests come in: the listening sockets, the direct door for plain scoring requests, the app for others."""
