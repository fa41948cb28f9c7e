"""The console: a page in a browser that shows what the server does, and the figures that it asks for."""
