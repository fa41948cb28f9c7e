"""The console: a page that shows what the server does, and the figures that it requests."""
