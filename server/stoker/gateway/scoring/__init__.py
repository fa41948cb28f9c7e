"""One served model as a frontend scores it, whatever the protocol and the door."""
