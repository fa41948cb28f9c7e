"""One served model as a frontend scores it, independent of protocol and path."""
